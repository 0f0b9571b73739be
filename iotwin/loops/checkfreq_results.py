"""What checkpoints cost in an experiment that runs each network under several policies."""

import json
from pathlib import Path
from statistics import fmean, median
from typing import Any

from common.errors import IotwinError
from common.files import write_json

POLICIES = ("none", "auto", "sync", "epoch")
_Results = dict[tuple[str, str], list[dict[str, Any]]]  # of the repeats, by network and policy


def summarise(directory: Path) -> dict[str, Any]:
    """Return what an experiment's finished cells say of each network, and write DIR/curves.json of it.

    `seconds` are medians over repeats of a run, `overhead` their share above the run without checkpoints, `stall_ratio` what
    training waits for a checkpoint that is synchronous over one that is not. Null where no cell tells. IotwinError without cells.
    """
    results = _read(directory)
    models = [_model(model, results) for model in sorted({model for model, _ in results})]
    curves = {
        "title": "Overhead of checkpoints",
        "x": {"label": "steps between checkpoints", "scale": "log"},
        "y": {"label": "time above a run without", "unit": "%"},
        "series": [_series(model) for model in models],
    }
    write_json(directory / "curves.json", curves)
    return {"directory": str(directory), "models": models}


def _read(directory: Path) -> _Results:
    found: _Results = {}
    for path in sorted((directory / "cells").glob("*/cell.json")):
        try:
            cell = json.loads(path.read_bytes())
            result = cell["result"]
            if cell["workload"] == "checkfreq" and result:
                configuration = result["configuration"]
                found.setdefault((configuration["arch"], configuration["chk_policy"]), []).append(result)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise IotwinError(f"{path} is no cell of an experiment ({error}); run iotwin run again") from None
    if not found:
        raise IotwinError(f"{directory} holds no finished cells of checkfreq; make them with: iotwin run checkfreq-smoke -o DIR")
    return found


def _model(model: str, results: _Results) -> dict[str, Any]:
    of_policy = {policy: results.get((model, policy), []) for policy in POLICIES}
    seconds = {policy: median(run["run_s"] for run in runs) if runs else None for policy, runs in of_policy.items()}
    stalls = {policy: _stall(runs) for policy, runs in of_policy.items() if policy != "none"}
    overhead = {
        policy: own / seconds["none"] - 1 if (own := seconds[policy]) is not None and seconds["none"] else None
        for policy in POLICIES[1:]
    }
    intervals = {policy: _interval(runs) for policy, runs in of_policy.items() if policy != "none"}
    ratio = stalls["sync"] / stalls["auto"] if stalls["sync"] is not None and stalls["auto"] else None
    return {
        "model": model,
        "interval": intervals["auto"],
        "intervals": intervals,
        "seconds": seconds,
        "overhead": overhead,
        "stall_per_checkpoint_s": stalls,
        "stall_ratio": ratio,
    }


def _stall(runs: list[dict[str, Any]]) -> float | None:
    stalls = [stall for run in runs for stall in run["checkpoints"]["stall_s"]]
    return fmean(stalls) if stalls else None


def _interval(runs: list[dict[str, Any]]) -> float | None:
    """Return the steps between two checkpoints, at the end of the run; of checkpoints at ends of epochs those of an epoch."""
    if not runs:
        return None
    told = [run["checkpoints"]["interval"] or run["steps"] / max(1, run["checkpoints"]["count"]) for run in runs]
    return float(median(told))


def _series(model: dict[str, Any]) -> dict[str, Any]:
    points = [
        (model["intervals"][policy], 100 * overhead)
        for policy, overhead in model["overhead"].items()
        if overhead is not None and model["intervals"][policy] is not None
    ]
    return {"name": model["model"], "x": [x for x, _ in sorted(points)], "y": [y for _, y in sorted(points)]}
