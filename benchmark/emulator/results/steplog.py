"""What every step of a run took, a row per step in 128 bytes, and the same of all ranks as a table."""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmark.emulator.loaders.base import Fetched
from common.files import open_whole

_COLUMNS = (
    "phase", "epoch", "block", "step", "start_ns", "data_wait_ns", "compute_ns", "barrier_ns", "overhead_ns", "step_ns",
    "samples", "bytes_read", "read_ns", "preprocess_ns", "fetch_start_ns",
)  # fmt: skip
PHASES = ("train", "evaluation")

Ints = NDArray[np.int64]


class StepParts(NamedTuple):
    """When a step began (CLOCK_MONOTONIC) and the nanoseconds of it and its parts.

    `compute_ns` is the computation time asked for, not what the sleep took: oversleeping is no useful work. It and the harness's
    own bookkeeping are in `overhead_ns`; below zero where an overshoot was taken off this step's sleep.
    """

    start_ns: int
    data_wait_ns: int
    compute_ns: int
    barrier_ns: int  # waiting for other ranks
    overhead_ns: int
    step_ns: int


class StepLog:
    """Collects the steps of one rank."""

    def __init__(self) -> None:
        self._rows = array("q")

    def add(self, phase: str, epoch: int, block: int, step: int, times: StepParts, fetched: Fetched) -> None:
        """Append step `step` of `epoch`, which is in its block `block`."""
        batch = (fetched.samples, fetched.size_bytes, fetched.read_ns, fetched.preprocess_ns, fetched.start_ns)
        self._rows.extend((PHASES.index(phase), epoch, block, step, *times, *batch))

    def rows(self) -> Ints:
        """Return the steps as (steps, columns)."""
        return np.frombuffer(self._rows, dtype=np.int64).reshape(-1, len(_COLUMNS))


class StepTable:
    """The steps of all ranks, by column."""

    def __init__(self, logs: Sequence[StepLog]) -> None:
        rows = [log.rows() for log in logs]
        stacked = np.concatenate(rows) if rows else np.empty((0, len(_COLUMNS)), np.int64)
        self.columns: dict[str, Ints] = {name: stacked[:, index] for index, name in enumerate(_COLUMNS)}
        self.columns["rank"] = np.repeat(np.arange(len(rows)), [len(part) for part in rows]).astype(np.int64)

    def of(self, phase: str, epoch: int | None = None, rank: int | None = None) -> dict[str, Ints]:
        """Return the columns of one phase, and of one epoch and one rank where these are given."""
        keep = self.columns["phase"] == PHASES.index(phase)
        if epoch is not None:
            keep = keep & (self.columns["epoch"] == epoch)
        if rank is not None:
            keep = keep & (self.columns["rank"] == rank)
        return {name: column[keep] for name, column in self.columns.items()}

    def write_parquet(self, path: Path) -> None:
        """Write all steps as a Parquet table, whole or not at all."""
        import pyarrow.parquet as pq

        with open_whole(path) as file:
            pq.write_table(self._arrow(), file)

    def _arrow(self) -> Any:
        """The steps as an Arrow table, made from buffers: pyarrow's conversions load pandas, a third of the rank's memory."""
        import pyarrow as pa

        ends = np.cumsum([0, *map(len, PHASES)], dtype=np.int32)
        names = pa.StringArray.from_buffers(len(PHASES), pa.py_buffer(ends), pa.py_buffer("".join(PHASES).encode()))
        codes = pa.py_buffer(self.columns["phase"].astype(np.int8))
        arrays = [
            pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int8(), len(self.columns["phase"]), [None, codes]), names)
        ]
        order = ("rank", *_COLUMNS[1:])
        for name in order:
            column = np.ascontiguousarray(self.columns[name])
            arrays.append(pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)]))
        return pa.Table.from_arrays(arrays, names=["phase", *order])
