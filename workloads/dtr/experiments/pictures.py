"""The pictures of a data file: time by budget, slowdown by ratio, throughput by batch size, and a table of medians."""

import csv
import io
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.dtr.experiments.analysis import median_of
from iotwin.workloads.dtr.experiments.trials import MEASURED

# The parts of a step, from the bottom of a bar to its top, with their names in the picture.
_PARTS = {
    "base_compute_time": "operators",
    "cost_time": "cost of tensors",
    "search_time": "search",
    "remat_compute_time": "recomputation",
}
_OTHER, _PLAIN = "not profiled", "without a budget"
_MOST_SLOWDOWN, _MOST_TIMES = 2.0, 3.0  # runs that are slower count as failed, as in the authors' pictures
_COLUMNS = ("model", "command_id", "type", "kind", "batch_size", "memory_budget", "ratio", "state")
Entries = list[dict[str, Any]]


def read_data(path: Path) -> dict[str, Entries]:
    """Return the entries of the data file `path` by model. Raises UsageError if it is not a data file."""
    try:
        data = read_foreign_json(path)
        models = {name: entries for name, entries in data.items() if isinstance(entries, list)}
        for entries in models.values():
            for entry in entries:
                _check(entry)
        return models
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None
    except IotwinError as error:
        raise UsageError(str(error)) from None
    except (AttributeError, KeyError, TypeError, ValueError):
        raise UsageError(f"{path} is not the data of an experiment") from None


def _check(entry: Any) -> None:
    """Raise KeyError, TypeError or ValueError if `entry` lacks what a picture requires."""
    params = entry["specific_params"]
    if params["type"] != "baseline":
        float(params.get("memory_budget", -1)), float(params.get("ratio", -1))
    int(params["batch_size"])
    if entry["summary"] != "error":
        for key in ("time", "gpu_time", "total_mem", "slowdown", *_PARTS):
            median_of(entry, key)


def documents_of(models: tuple[str, ...], data: dict[str, Entries]) -> dict[str, dict[str, Any]]:
    """Return the documents of all pictures by file name: those with bars have "bars" in their panels, the others "curves"."""
    found: dict[str, dict[str, Any]] = {}
    by_ratio = [panel for model in models for panel in _slowdowns(model, data.get(model, []))]
    if by_ratio:
        found["combined-comparison-ratio.png"] = {
            "title": "", "x": {"label": "memory budget, share of the peak"}, "y": {"label": "slowdown", "unit": "x"},
            "panels": by_ratio,
        }  # fmt: skip
    by_budget = [panel for model in models for panel in _breakdowns(model, data.get(model, []))]
    if by_budget:
        found["combined-breakdown-comparison.png"] = _bars("memory budget", "GB", by_budget)
    for model in models:
        sweep = [entry for entry in data.get(model, []) if _kind(entry) == "param_sweep"]
        if not sweep:
            continue
        plain = [entry for entry in data[model] if _is_baseline(entry)]
        found[f"throughput-comparison-{model}.png"] = {
            **_bars("batch size", "", [_throughputs(model, plain, sweep)]), "y": {"label": "throughput", "unit": "samples/s"},
            "parts": [_PLAIN, *dict.fromkeys(_budget_name(entry) for entry in sweep)],
        }  # fmt: skip
        bars = [_bar(f"{entry['specific_params']['batch_size']}\n{_budget_name(entry)}", entry, None) for entry in sweep]
        found[f"time-breakdown-{model}.png"] = _bars("batch size", "", [{"title": model, "bars": bars}])
    return found


def medians_table(models: tuple[str, ...], data: dict[str, Entries]) -> str:
    """Return a CSV table with a line for each run: its parameters, its state, and the medians of all columns."""
    text = io.StringIO()
    measured = (*(key for key in MEASURED if key != "memory_budget"), "slowdown", "throughput")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*_COLUMNS, *measured))
    for model in models:
        for entry in data.get(model, []):
            params, failed = entry["specific_params"], _failed(entry)
            known = {**params, "model": model, "command_id": entry.get("command_id"), "state": "failed" if failed else "pass"}
            medians = [None if failed else median_of(entry, key, "median") for key in measured]
            writer.writerow([*(known.get(column) for column in _COLUMNS), *medians])
    return text.getvalue()


def _kind(entry: dict[str, Any]) -> str | None:
    params = entry["specific_params"]
    return None if params["type"] == "baseline" else params.get("kind")


def _is_baseline(entry: dict[str, Any]) -> bool:
    return bool(entry["specific_params"]["type"] == "baseline")


def _failed(entry: dict[str, Any]) -> bool:
    return entry["summary"] == "error" or not entry["summary"]


def _by_batch(entries: Entries, kind: str) -> dict[int, tuple[dict[str, Any] | None, Entries]]:
    """Return the runs of a kind by batch size, each with the first run without a budget, or None if there is none."""
    found: dict[int, tuple[dict[str, Any] | None, Entries]] = {}
    for batch in sorted({entry["specific_params"]["batch_size"] for entry in entries if _kind(entry) == kind}):
        of_batch = [entry for entry in entries if entry["specific_params"]["batch_size"] == batch]
        plain = next((entry for entry in of_batch if _is_baseline(entry) and not _failed(entry)), None)
        found[batch] = plain, [entry for entry in of_batch if _kind(entry) == kind]
    return found


def _slowdowns(model: str, entries: Entries) -> list[dict[str, Any]]:
    """Return a panel for each batch size: slowdown by ratio. Runs that failed or took twice the time have no y."""
    panels = []
    for batch, (plain, runs) in _by_batch(entries, "ratio").items():
        points = []
        for entry in sorted(runs, key=lambda entry: float(entry["specific_params"]["ratio"])):
            point: dict[str, Any] = {"x": float(entry["specific_params"]["ratio"])}
            slowdown = None if _failed(entry) else median_of(entry, "slowdown")
            if _failed(entry):
                point["state"] = "failed"
            elif slowdown is None and plain is not None:
                slowdown = (median_of(entry, "gpu_time") or 0) / (median_of(plain, "gpu_time") or 1)
            if slowdown is not None and slowdown > _MOST_SLOWDOWN:
                point["state"] = "thrash"
            elif slowdown is not None:
                point["y"] = slowdown
                bounds = [each["slowdown"]["mean_conf"] for each in entry["summary"] if "slowdown" in each]
                if bounds:
                    point |= {"low": bounds[0][0], "high": bounds[0][1]}
            points.append(point)
        panels.append({"title": f"{model} ({batch})", "curves": [{"name": model, "points": points}]})
    return panels


def _breakdowns(model: str, entries: Entries) -> list[dict[str, Any]]:
    """Return a panel for each batch size: time by budget, first without a budget, then from the largest budget."""
    panels = []
    for batch, (plain, runs) in _by_batch(entries, "fixed").items():
        budgeted = [entry for entry in runs if float(entry["specific_params"].get("memory_budget", -1)) > 0]
        budgeted.sort(key=lambda entry: -float(entry["specific_params"]["memory_budget"]))
        label = "none" if plain is None else f"{(median_of(plain, 'total_mem') or 0) * 1e-3:.1f}\n(none)"
        first = {"label": label, "values": {_PLAIN: median_of(plain, "time")} if plain else {}, "failed": plain is None}
        bars = [_bar(_gigabytes(entry), entry, plain) for entry in budgeted]
        if bars:
            panels.append({"title": f"{model} ({batch})", "bars": [first, *bars]})
    return panels


def _bar(label: str, entry: dict[str, Any], plain: dict[str, Any] | None) -> dict[str, Any]:
    """Return a bar of the parts of a step in ms. A run that failed, or took 3 times the time of `plain`, has no parts."""
    total = None if _failed(entry) else median_of(entry, "time")
    limit = None if plain is None else _MOST_TIMES * (median_of(plain, "time") or 0)
    if total is None or (limit is not None and total > limit):
        return {"label": label, "values": {}, "failed": True}
    parts = {name: max(0.0, median_of(entry, key) or 0.0) for key, name in _PARTS.items()}
    return {"label": label, "values": {**parts, _OTHER: max(0.0, total - sum(parts.values()))}, "failed": False}


def _throughputs(model: str, plain: Entries, sweep: Entries) -> dict[str, Any]:
    bars = []
    for batch in sorted({entry["specific_params"]["batch_size"] for entry in sweep}):
        for entry in (*plain, *sweep):
            if entry["specific_params"]["batch_size"] == batch:
                name = _PLAIN if _is_baseline(entry) else _budget_name(entry)
                value = None if _failed(entry) else median_of(entry, "throughput")
                values = {} if value is None else {name: value}
                bars.append({"label": str(batch), "values": values, "failed": value is None})
    return {"title": model, "bars": bars}


def _gigabytes(entry: dict[str, Any]) -> str:
    return f"{float(entry['specific_params']['memory_budget']) * 1e-9:.3g}"


def _budget_name(entry: dict[str, Any]) -> str:
    return f"{_gigabytes(entry)} GB"


def _bars(label: str, unit: str, panels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "title": "", "x": {"label": label, "unit": unit}, "y": {"label": "a batch", "unit": "ms"},
        "parts": [_PLAIN, *_PARTS.values(), _OTHER], "panels": panels,
    }  # fmt: skip
