"""Analyse the steps of instrumented runs: write tables, pictures and models of compute time."""

from pathlib import Path
from typing import Any

import pandas as pd

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, write_json, write_whole
from iotwin.trace_visuals.steps.distributions import DistributionFit, fit_compute_time
from iotwin.trace_visuals.steps.panels import draw_all
from iotwin.trace_visuals.steps.step_logs import read_steps
from iotwin.trace_visuals.steps.step_statistics import CONFIGURATION, predicted, regressions, settled, statistics, throughputs

_MODEL_KNOTS = 101


def plot_steps(directories: list[Path], output: Path, title: str | None = None) -> dict[str, Any]:
    """Analyse the instrumented runs under `directories`, write the results to the folder `output`, and return a summary.

    Results are steps.csv, throughputs.csv, fits.json, regressions.json, a model of compute time for every configuration in
    computation_times/, and pictures of the breakdown, latencies, throughputs and compute times of each workload. `title` is
    written over every picture. Raises UsageError if a path cannot be used, IotwinError if there is nothing to analyse.
    """
    if output.exists() and not output.is_dir():
        raise UsageError(f"{output} is a file; give a directory for the tables and pictures")
    steps = settled(read_steps(directories))
    if steps.empty:
        raise IotwinError("all steps of the runs are left out as cold; run more steps")
    table = statistics(steps)
    rates = throughputs(table)
    fits = _fits(steps)
    fitted = regressions(table)
    make_folder(output)
    make_folder(output / "computation_times", below=output)
    write_whole(output / "steps.csv", table.to_csv(index=False).encode())
    write_whole(output / "throughputs.csv", rates.to_csv(index=False).encode())
    write_json(output / "fits.json", [_fit_row(key, found) for key, found in fits.items()])
    write_json(output / "regressions.json", [_with_models(fit, table) for fit in fitted])
    models = _write_models(steps, output / "computation_times")
    pictures = draw_all(table, rates, fits, steps, output, title)
    return {
        "output": str(output),
        "runs": int(steps["run"].nunique()),
        "configurations": len(models),
        "pictures": [str(path) for path in pictures],
        "models": [str(path) for path in models],
        "regressions": fitted,
    }


def _compute(steps: pd.DataFrame) -> Any:
    return steps[steps["key"] == "all_compute"].groupby(CONFIGURATION)["seconds"]


def _fits(steps: pd.DataFrame) -> dict[tuple[object, ...], list[DistributionFit]]:
    return {key: fit_compute_time(seconds.to_numpy()) for key, seconds in _compute(steps)}


def _fit_row(key: tuple[Any, ...], fits: list[DistributionFit]) -> dict[str, Any]:
    workload, variant, gpus, batch = key
    found = [{"name": f.name, "held_out_log_likelihood": f.log_likelihood, "computation_time": f.computation_time} for f in fits]
    return {"workload": workload, "variant": variant, "gpus": int(gpus), "batch": int(batch), "fits": found}


def _with_models(fit: dict[str, Any], table: pd.DataFrame) -> dict[str, Any]:
    """Return `fit`, a regression, with the resulting `computation_time` (for the emulator) of each configuration."""
    own = table[(table["workload"] == fit["workload"]) & (table["variant"] == fit["variant"]) & (table["key"] == "all_compute")]
    models = [
        {"gpus": int(gpus), "batch": int(batch), "computation_time": predicted(fit, int(gpus), int(batch))}
        for gpus, batch in zip(own["gpus"], own["batch"], strict=True)
    ]
    return fit | {"models": models}


def _write_models(steps: pd.DataFrame, directory: Path) -> list[Path]:
    """Write the quantiles of each configuration's compute time, in the form that the emulator and --sleep read."""
    paths = []
    for (workload, variant, gpus, batch), seconds in _compute(steps):
        count = min(_MODEL_KNOTS, len(seconds))
        values = seconds.quantile([index / max(1, count - 1) for index in range(count)]).tolist()
        name = f"{workload}-{variant}-{gpus}x{batch}.json".replace("/", "_")
        write_json(directory / name, {"type": "quantiles", "values": values})
        paths.append(directory / name)
    return paths
