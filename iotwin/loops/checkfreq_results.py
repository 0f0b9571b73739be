"""Summarises what checkpoints cost in an experiment that trains each network under several checkpoint policies."""

from pathlib import Path
from statistics import fmean, median
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.files import write_json
from iotwin.common.untrusted_files import read_foreign_json

POLICIES = ("none", "auto", "sync", "epoch")
_Results = dict[tuple[str, str], list[dict[str, Any]]]  # results of the repeats, by (network, policy)


def summarise(directory: Path) -> dict[str, Any]:
    """Return the costs of each network from an experiment's finished cells, and write the curves to DIR/curves.json.

    `seconds`: median time of a run. `overhead`: how much longer a run takes than without checkpoints, as a share. `stall_ratio`:
    mean stall of a synchronous checkpoint divided by the mean stall of an asynchronous one. A value that no cell measured is
    None. Raises IotwinError if no cell has finished.
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
            cell = read_foreign_json(path)
            result = cell["result"]
            if cell["workload"] == "checkfreq" and result:
                configuration = result["configuration"]
                found.setdefault((configuration["arch"], configuration["chk_policy"]), []).append(result)
        except (IotwinError, OSError, KeyError, TypeError) as error:
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
    """Return the median number of steps between checkpoints, as it was at the end of the runs; None without runs."""
    if not runs:
        return None
    steps = [run["checkpoints"]["interval"] or run["steps"] / max(1, run["checkpoints"]["count"]) for run in runs]
    return float(median(steps))


def _series(model: dict[str, Any]) -> dict[str, Any]:
    points = [
        (model["intervals"][policy], 100 * overhead)
        for policy, overhead in model["overhead"].items()
        if overhead is not None and model["intervals"][policy] is not None
    ]
    return {"name": model["model"], "x": [x for x, _ in sorted(points)], "y": [y for _, y in sorted(points)]}
