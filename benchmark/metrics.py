"""What a run measured: a row per step, and a summary with DLIO's names where it has them.

DLIO's names keep DLIO's units: *_MB_per_second and *_GB_* are MiB and GiB there.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmark.checkpoint import Written
from benchmark.loader import Fetched

_COLUMNS = (
    "phase", "epoch", "step", "start_ns", "data_wait_ns", "compute_ns", "step_ns", "samples", "bytes_read", "read_ns",
    "preprocess_ns",
)  # fmt: skip
_PHASES = ("train", "evaluation")
_EXCLUDED_STEPS = 1  # of every epoch, as DLIO and MLPerf Storage have it: the first batch has no step to hide behind
_QUANTILES = {"min": 0.0, "p05": 0.05, "p25": 0.25, "median": 0.5, "p75": 0.75, "p95": 0.95, "p99": 0.99, "max": 1.0}

Ints = NDArray[np.int64]


class StepLog:
    """Collects steps in 88 bytes each.

    `compute_ns` is the computation time asked for, not what the sleep took: oversleeping is no useful work.
    """

    def __init__(self) -> None:
        self._rows = array("q")

    def add(self, phase: str, epoch: int, step: int, times: tuple[int, int, int, int], fetched: Fetched) -> None:
        """Append one step; `times` are start_ns, data_wait_ns, compute_ns and step_ns."""
        batch = (fetched.samples, fetched.size_bytes, fetched.read_ns, fetched.preprocess_ns)
        self._rows.extend((_PHASES.index(phase), epoch, step, *times, *batch))

    def columns(self, phase: str | None = None) -> dict[str, Ints]:
        """Return the columns by name, one entry per step, of one phase or of both; `phase` itself is its number."""
        rows = np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))
        if phase is not None:
            rows = rows[rows[:, 0] == _PHASES.index(phase)]
        return {name: rows[:, place] for place, name in enumerate(_COLUMNS)}

    def write_parquet(self, path: Path) -> None:
        """Write all steps as a Parquet table, whole or not at all."""
        import pyarrow.parquet as pq

        temporary = path.with_name(path.name + ".partial")
        try:
            pq.write_table(self._table(), temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _table(self) -> Any:
        """The steps as an Arrow table, made from buffers: pyarrow's conversions load pandas, a third of the rank's memory."""
        import pyarrow as pa

        columns = self.columns()
        ends = np.cumsum([0, *map(len, _PHASES)], dtype=np.int32)
        names = pa.StringArray.from_buffers(len(_PHASES), pa.py_buffer(ends), pa.py_buffer("".join(_PHASES).encode()))
        phase = pa.Array.from_buffers(pa.int8(), len(columns["phase"]), [None, pa.py_buffer(columns["phase"].astype(np.int8))])
        arrays = [pa.DictionaryArray.from_arrays(phase, names)]
        for name in _COLUMNS[1:]:
            column = np.ascontiguousarray(columns[name])
            arrays.append(pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)]))
        return pa.Table.from_arrays(arrays, names=list(_COLUMNS))


def phase_metrics(prefix: str, columns: dict[str, Ints]) -> dict[str, Any]:
    """Return DLIO's metrics of one phase, each name beginning with `prefix`: per epoch, their mean and standard deviation.

    Accelerator utilisation of an epoch is computation time over elapsed time, both without its first step, as MLPerf Storage
    defines it; an epoch of one step has none (null). Throughput counts every step, from the wait for the first batch to the end
    of the last step.
    """
    utilisation: list[float | None] = []
    throughput: list[float] = []
    rate: list[float] = []
    for epoch in np.unique(columns["epoch"]):
        rows = columns["epoch"] == epoch
        compute_ns, step_ns = columns["compute_ns"][rows][_EXCLUDED_STEPS:], columns["step_ns"][rows]
        counted_ns = step_ns[_EXCLUDED_STEPS:].sum()
        # Overshoot of the step left out may come off the sleeps of those counted, so the ratio can pass one.
        utilisation.append(100.0 * min(1.0, float(compute_ns.sum() / counted_ns)) if counted_ns else None)
        elapsed_s = float(step_ns.sum()) / 1e9
        throughput.append(float(columns["samples"][rows].sum()) / elapsed_s)
        rate.append(float(columns["bytes_read"][rows].sum()) / elapsed_s / (1 << 20))
    known = [value for value in utilisation if value is not None]
    return {
        f"{prefix}_au_percentage": utilisation,
        **_mean_and_stdev(f"{prefix}_au", "percentage", known),
        f"{prefix}_throughput_samples_per_second": throughput,
        **_mean_and_stdev(f"{prefix}_throughput", "samples_per_second", throughput),
        **_mean_and_stdev(f"{prefix}_io", "MB_per_second", rate),
    }


def checkpoint_metrics(written: Sequence[Written]) -> dict[str, Any]:
    """Return DLIO's metrics of saving checkpoints; a checkpoint is all files written after one epoch."""
    epochs = sorted({file.epoch for file in written})
    sizes = [sum(file.size_bytes for file in written if file.epoch == epoch) / (1 << 30) for epoch in epochs]
    seconds = [sum(file.duration_ns for file in written if file.epoch == epoch) / 1e9 for epoch in epochs]
    rates = [size / duration for size, duration in zip(sizes, seconds, strict=True)]
    return {
        **_mean_and_stdev("save_checkpoint_io", "GB_per_second", rates),
        **_mean_and_stdev("save_checkpoint_duration", "seconds", seconds),
        "checkpoint_size_GB": float(np.mean(sizes)),
    }


def step_quantiles(columns: dict[str, Ints]) -> dict[str, dict[str, float]]:
    """Return quantiles, in seconds, of how long a step waited for its batch, computed, and lasted in all."""
    probabilities = list(_QUANTILES.values())
    names = {"data_wait_s": "data_wait_ns", "compute_s": "compute_ns", "step_time_s": "step_ns"}
    return {
        name: dict(zip(_QUANTILES, (np.quantile(columns[column], probabilities) / 1e9).tolist(), strict=True))
        for name, column in names.items()
    }


def _mean_and_stdev(name: str, unit: str, values: Sequence[float]) -> dict[str, float | None]:
    mean, stdev = (float(np.mean(values)), float(np.std(values))) if values else (None, None)
    return {f"{name}_mean_{unit}": mean, f"{name}_stdev_{unit}": stdev}
