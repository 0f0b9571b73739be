"""The data file and the summary text of an experiment, computed from its tables, in the authors' formats."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.common.untrusted_files import read_foreign_json
from iotwin.workloads.dtr.experiments.config import DtrExperiment
from iotwin.workloads.dtr.experiments.settings import Setting
from iotwin.workloads.dtr.experiments.tables import Table, read_table
from iotwin.workloads.dtr.experiments.trials import MEASURED

_RESAMPLES, _TAIL_PERCENT = 10_000, 2.5
ERRORS = "errors.json"
_KEY = (
    "Key: median (Wall clock time (ms), GPU time (ms), slowdown (X), input memory (MB), model memory (MB), and final memory "
    "(MB)) for each input\n"
)


def read_errors(folder: Path) -> list[dict[str, Any]]:
    """Return the errors of the runs in `folder`: each with its model, command_id, file (its table) and message."""
    try:
        return list(read_foreign_json(folder / ERRORS)["errors"])
    except FileNotFoundError:
        return []


def data_of(experiment: DtrExperiment, settings: list[Setting], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return, by model, an entry for each run: its parameters, and for each input the statistics of each measured column."""
    failed = {error["file"] for error in read_errors(folder)}
    baselines: dict[tuple[str, int], Table] = {}  # key: model with its sizes, number of samples
    data: dict[str, list[dict[str, Any]]] = {model: [] for model in experiment.models}
    for setting in settings:
        entry: dict[str, Any] = {"num_retries": None, "specific_params": dict(setting.params)}
        same = setting.model_words()
        if setting.file_name in failed:
            entry["summary"] = "error"
        else:
            table = read_table(folder / setting.file_name)
            if setting.is_baseline:
                baselines.setdefault(same, table)
            entry["num_retries"] = table.retries
            if setting.params.get("kind") == "ratio":
                entry["specific_params"]["memory_budget"] = table.budget_bytes
            entry["summary"] = [
                _summary(setting, metrics, baselines[same].inputs.get(index) if same in baselines else None)
                for index, metrics in table.inputs.items()
            ]
        data[setting.model].append({**entry, "command_id": setting.command_id})
    return data


def _summary(setting: Setting, metrics: dict[str, list[float]], plain: dict[str, list[float]] | None) -> dict[str, Any]:
    """Return the statistics of one input. `plain`: the metrics of the same input without a budget, or None."""
    summary = {key: _statistics(metrics[key], "time" in key) for key in MEASURED if key in metrics}
    times = metrics.get("gpu_time", [])
    if not setting.is_baseline and plain is not None:
        slowdowns = [ours / theirs for ours, theirs in zip(times, plain.get("gpu_time", []), strict=False) if theirs > 0]
        if slowdowns:
            summary["slowdown"] = _statistics(slowdowns, True)
    if (setting.is_baseline or setting.params.get("kind") == "param_sweep") and all(time > 0 for time in times):
        summary["throughput"] = _statistics([setting.params["batch_size"] / time * 1e3 for time in times], True)
    return summary


def _statistics(values: list[float], interval: bool) -> dict[str, Any]:
    """Return mean, median and standard deviation, and with `interval` the bounds of 95 % confidence by the bootstrap."""
    numbers = np.array(values)
    found: dict[str, Any] = {
        "mean": float(numbers.mean()), "median": float(np.median(numbers)), "std": float(numbers.std()),
    }  # fmt: skip
    if interval:
        drawn = numbers[np.random.default_rng(0).integers(0, len(numbers), (_RESAMPLES, len(numbers)))]
        found |= {"mean_conf": _bounds(drawn.mean(axis=1)), "median_conf": _bounds(np.median(drawn, axis=1))}
    return found


def _bounds(estimates: NDArray[np.float64]) -> list[float]:
    return [float(np.percentile(estimates, percent)) for percent in (_TAIL_PERCENT, 100 - _TAIL_PERCENT)]


def median_of(entry: dict[str, Any], key: str, statistic: str = "mean") -> float | None:
    """Return the median over the inputs of `statistic` of the column `key` in an entry of a data file; None without values."""
    values = [each[key][statistic] for each in entry["summary"] if key in each]
    return float(np.median(values)) if values else None


def summary_text(experiment: DtrExperiment, data: dict[str, Any]) -> str:
    """Return the summary of a data file: the medians of each run, after the runs that failed."""
    failures, results = "", _KEY
    for model in experiment.models:
        entries = data.get(model, [])
        failed = list(dict.fromkeys(_words(_shown(each), ";   ") for each in entries if each["summary"] == "error"))
        if failed:
            failures += f"*{model}*:\n" + "".join(f"{each}\n" for each in failed) + "\n"
        measured = [each for each in entries if each["summary"] != "error"]
        if measured:
            results += f"*{model}*:\n"
        for entry in measured:
            results += (
                f"   Configuration:\n   {_words(_shown(entry, with_id=False), ';    ')}\n      *Results*: {_medians(entry)}\n\n"
            )
    return (f"*ERRORS CAUGHT AT:*\n{failures}\n" if failures else "") + results


def _shown(entry: dict[str, Any], with_id: bool = True) -> dict[str, Any]:
    """Return those parameters of a run that the summary shows."""
    params = entry["specific_params"]
    shown: dict[str, Any] = {"type": params["type"]}
    budget = params.get("memory_budget")
    if budget is not None and budget > 0:
        shown["memory_budget"] = f"{budget * 1e-6:.3g} MB"
    if params.get("kind") == "ratio":
        shown["ratio"] = params["ratio"]
    return shown | ({"command_id": entry["command_id"]} if with_id else {})


def _words(shown: dict[str, Any], separator: str) -> str:
    return separator.join(f"_{key}_: {value}" for key, value in shown.items())


def _medians(entry: dict[str, Any]) -> str:
    keys = ("time", "gpu_time", "slowdown", "input_mem", "model_mem", "total_mem")
    medians = [median_of(entry, key) for key in keys]
    return ", ".join("_" if value is None else f"{value:.3f}" for value in medians)
