"""Compute the figures of a run: DLIO's metrics, and estimates with confidence intervals.

DLIO's metrics have DLIO's names and units: *_MB_per_second and *_GB_* are in MiB and GiB.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.results.step_table import (
    StepColumns,
    StepTable,
    accelerator_utilisation,
    block_sums,
    counted_steps,
    where,
)
from iotwin.common.numbers.confidence import Estimate, mean, mean_of_parts, quantiles, ratio
from iotwin.workload_yaml import OutputMetric

_QUANTILES = {"min": 0.0, "p05": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}
_PREFIXES = {"train": "train", "evaluation": "eval"}


def phase_metrics(table: StepTable, phase: str, excluded: OutputMetric) -> dict[str, Any]:
    """Return DLIO's metrics of one phase, "train" or "evaluation": lists by epoch, their mean and standard deviation.

    `accelerator_utilisation` is None for an epoch without counted steps. Throughput counts all steps of all ranks, over the time
    of the slowest rank.
    """
    utilisation: list[float | None] = []
    throughput: list[float] = []
    rate: list[float] = []
    every, counted = block_sums(table, phase), block_sums(table, phase, excluded)
    for epoch in np.unique(every["epoch"]).tolist():
        one = where(every, epoch=epoch)
        utilisation.append(accelerator_utilisation(where(counted, epoch=epoch)))
        elapsed_s = float(np.bincount(one["rank"], weights=one["step_ns"]).max()) / 1e9
        throughput.append(float(one["samples"].sum()) / elapsed_s)
        rate.append(float(one["bytes_read"].sum()) / elapsed_s / (1 << 20))
    known = [value for value in utilisation if value is not None]
    prefix = _PREFIXES[phase]
    return {
        f"{prefix}_au_percentage": utilisation,
        **_mean_and_stdev(f"{prefix}_au", "percentage", known),
        f"{prefix}_throughput_samples_per_second": throughput,
        **_mean_and_stdev(f"{prefix}_throughput", "samples_per_second", throughput),
        **_mean_and_stdev(f"{prefix}_io", "MB_per_second", rate),
    }


def estimates(table: StepTable, phase: str, excluded: OutputMetric) -> dict[str, Any]:
    """Return the figures of one phase over all its epochs, each with its confidence interval.

    Utilisation excludes the same steps as phase_metrics. `au_without_overhead_percentage` also subtracts from the steps' time the
    emulator's overhead, which is all time except waiting for data, computing and waiting for other ranks.
    """
    every = _over_ranks(table.batches(phase))
    kept = _over_ranks(counted_steps(each, excluded) for each in table.batches(phase))
    steps = int(every["ranks"].sum())
    with_overhead = ratio(kept["compute_ns"], kept["step_ns"])
    # An excluded step's delay may have shortened the sleeps of counted steps. The sum of overhead must not be negative.
    overhead_ns = kept["overhead_ns"] if kept["overhead_ns"].sum() > 0 else np.zeros_like(kept["step_ns"])
    without = ratio(kept["compute_ns"], kept["step_ns"] - overhead_ns)
    # The steps of ranks run concurrently, so the elapsed time of a step is the mean over ranks.
    elapsed_ns = every["step_ns"] / np.maximum(every["ranks"], 1)
    return {
        "au_percentage": _share(with_overhead),
        "au_without_overhead_percentage": _share(without),
        "samples_per_second": _document(ratio(every["samples"], elapsed_ns), 1e9),
        "bytes_per_second": _document(ratio(every["bytes_read"], elapsed_ns), 1e9),
        "data_wait_s": _document(mean_of_parts(table.column(phase, "data_wait_ns"), steps), 1e-9),
        "step_time_s": _document(mean_of_parts(table.column(phase, "step_ns"), steps), 1e-9),
        "overhead_s": _document(mean(kept["overhead_ns"] / np.maximum(kept["ranks"], 1)), 1e-9),
    }


def _over_ranks(parts: Iterable[StepColumns]) -> StepColumns:
    """Return each step's sums over ranks, in the order of steps, and `ranks`, the number of ranks that ran it."""
    names = ("compute_ns", "step_ns", "overhead_ns", "samples", "bytes_read", "ranks")
    total: StepColumns = {name: np.empty(0, np.int64) for name in ("epoch", "step", *names)}
    for part in parts:
        columns = {name: np.append(total[name], part[name] if name in part else np.ones_like(part["step"])) for name in total}
        stride = int(columns["step"].max(initial=0)) + 1
        keys, group = np.unique(columns["epoch"] * stride + columns["step"], return_inverse=True)
        summed = {name: np.bincount(group, weights=columns[name], minlength=len(keys)).astype(np.int64) for name in names}
        total = {"epoch": keys // stride, "step": keys % stride, **summed}
    return total


def _share(estimate: Estimate | None) -> dict[str, float | None] | None:
    """Return the estimate of a share in percent, limited to 100."""
    return None if estimate is None else estimate.at_most(1.0).scaled(100.0)._asdict()


def _document(estimate: Estimate | None, factor: float) -> dict[str, float | None] | None:
    return None if estimate is None else estimate.scaled(factor)._asdict()


def checkpoint_metrics(kind: str, files: Sequence[Sequence[Written]]) -> dict[str, Any]:
    """Return DLIO's metrics of saving (or loading) checkpoints by the files of every rank. `kind` is "save" or "load".

    The duration of a checkpoint is the duration on its slowest rank. A rank's rate covers all its files. Two metrics are not
    DLIO's: the smallest rate over ranks, which MLPerf Storage's rules require, and the confidence interval of the mean rate.
    """
    by_checkpoint: dict[tuple[int, str, int], dict[int, tuple[int, int]]] = {}
    for rank, written in enumerate(files):
        for turn, file in _turns(written):
            totals = by_checkpoint.setdefault((file.epoch, file.name.rpartition("/")[0], turn), {})
            size, duration = totals.get(rank, (0, 0))
            totals[rank] = size + file.size_bytes, duration + file.duration_ns
    checkpoints = [list(totals.values()) for totals in by_checkpoint.values()]
    seconds = [max(duration for _, duration in ranks) / 1e9 for ranks in checkpoints]
    sizes = [sum(size for size, _ in ranks) / (1 << 30) for ranks in checkpoints]
    slowest = [min(size / duration for size, duration in ranks) * 1e9 / (1 << 30) for ranks in checkpoints]
    averages = [float(np.mean([size / duration for size, duration in ranks])) * 1e9 / (1 << 30) for ranks in checkpoints]
    return {
        **_mean_and_stdev(f"{kind}_checkpoint_io", "GB_per_second", averages),
        **_mean_and_stdev(f"{kind}_checkpoint_duration", "seconds", seconds),
        f"{kind}_checkpoint_io_min_GB_per_second": min(slowest),
        f"{kind}_checkpoint_io_GB_per_second": _document(mean(np.array(averages)), 1.0),
        "checkpoint_size_GB": float(np.mean(sizes)),
    }


def _turns(written: Sequence[Written]) -> list[tuple[int, Written]]:
    """Return (n, file) for each file, where n is how often its epoch and name occurred before: it belongs to checkpoint n."""
    seen: dict[tuple[int, str], int] = {}
    turns = []
    for file in written:
        turn = seen.get((file.epoch, file.name), 0)
        seen[file.epoch, file.name] = turn + 1
        turns.append((turn, file))
    return turns


def step_quantiles(table: StepTable, phase: str) -> dict[str, dict[str, Any]]:
    """Return quantiles, in seconds, of the wait for a batch, the computation, the wait for ranks and the whole step.

    The phase must have steps.
    """
    names = {"data_wait_s": "data_wait_ns", "compute_s": "compute_ns", "step_time_s": "step_ns", "barrier_s": "barrier_ns"}
    found: dict[str, dict[str, Any]] = {}
    for name, column in names.items():
        estimated = quantiles(partial(table.column, phase, column), list(_QUANTILES.values()))
        spread = {label: estimate.scaled(1e-9) for label, estimate in zip(_QUANTILES, estimated, strict=True)}
        found[name] = {label: estimate.value for label, estimate in spread.items()}
        found[name]["intervals"] = {label: [spread[label].low, spread[label].high] for label in ("median", "p95", "p99")}
    return found


def _mean_and_stdev(name: str, unit: str, values: Sequence[float]) -> dict[str, float | None]:
    center, stdev = (float(np.mean(values)), float(np.std(values))) if values else (None, None)
    return {f"{name}_mean_{unit}": center, f"{name}_stdev_{unit}": stdev}
