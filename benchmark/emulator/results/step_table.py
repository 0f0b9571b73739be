"""The steps of all ranks, of which a part is in memory at a time, and accelerator utilisation (AU)."""

import os
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.journal import COLUMNS, PHASES, Ints, StepLog
from iotwin.common.errors import IotwinError, reason_of
from iotwin.common.files import open_whole
from iotwin.workload_yaml import OutputMetric

StepColumns = dict[str, NDArray[Any]]  # the columns COLUMNS and `rank`, each of shape (steps,)

_MEMORY_BYTES = _BATCH_BYTES = 8 << 20  # most bytes of steps in memory; most of a batch, its last rank not counted
_STEP_BYTES = 8 * len(COLUMNS)
_BLOCK = ("rank", "epoch", "block")
_SUMMED = ("compute_ns", "step_ns", "samples", "bytes_read")
_ORDER = ("rank", *COLUMNS[1:])  # the columns of metrics.parquet after `phase`, in order


class StepTable:
    """Collects the steps of all ranks. More than 8 MiB of steps are stored in a temporary file in `folder`."""

    def __init__(self, logs: Sequence[StepLog] = (), folder: str | None = None) -> None:
        self._file = SpooledTemporaryFile(_MEMORY_BYTES, dir=folder)  # noqa: SIM115 - open until the object ends
        self._parts = array("q")  # (rank, bytes) of each part of the file
        self.ranks = 0
        for rank, log in enumerate(logs):
            self.add(rank, log.rows().tobytes())

    def add(self, rank: int, rows: bytes) -> None:
        """Append steps of `rank`, as `StepLog.take` returns them. Raises IotwinError if the disk is full."""
        try:
            self._file.seek(0, os.SEEK_END)
            self._file.write(rows)
        except OSError as error:
            raise IotwinError(f"output.folder: the steps of the ranks cannot be written: {reason_of(error)}") from None
        self._parts.extend((rank, len(rows)))
        self.ranks = max(self.ranks, rank + 1)

    def of_rank(self, rank: int) -> StepColumns:
        """Return the steps of one rank, in the order in which it did them."""
        ranks, _ = self._index()
        return self._read(np.flatnonzero(ranks == rank))

    def batches(self, phase: str | None = None) -> Iterator[StepColumns]:
        """Yield the steps in batches, at least one. If `phase` is given, yield only the steps of this phase.

        A batch has all steps of one or more consecutive ranks.
        """
        ranks, sizes = self._index()
        order = np.argsort(ranks, kind="stable")
        begins = np.cumsum(sizes[order]) - sizes[order]
        batch = begins[np.searchsorted(ranks[order], ranks[order])] // _BATCH_BYTES  # a rank's first part decides
        for parts in np.split(order, np.flatnonzero(np.diff(batch)) + 1):
            columns = self._read(parts)
            yield columns if phase is None else where(columns, phase=PHASES.index(phase))

    def column(self, phase: str, name: str) -> Iterator[Ints]:
        """Yield one column of the steps of a phase, in batches."""
        for columns in self.batches():
            yield columns[name][columns["phase"] == PHASES.index(phase)]

    def _index(self) -> Ints:
        """Return the rank and the bytes of each part, shape (2, parts)."""
        return np.array(self._parts, np.int64).reshape(-1, 2).T

    def _read(self, parts: Ints) -> StepColumns:
        """Return the steps of these parts of the file, in their order."""
        ranks, sizes = self._index()
        rows = np.empty((int(sizes[parts].sum()) // _STEP_BYTES, len(COLUMNS)), np.int64)
        begins, content, done = np.cumsum(sizes) - sizes, rows.reshape(-1).view(np.uint8).data, 0
        for begin, size in zip(begins[parts].tolist(), sizes[parts].tolist(), strict=True):
            self._file.seek(begin)
            self._file.readinto(content[done : done + size])
            done += size
        columns: StepColumns = {name: rows[:, index] for index, name in enumerate(COLUMNS)}
        return columns | {"rank": np.repeat(ranks[parts], sizes[parts] // _STEP_BYTES)}

    def write_parquet(self, path: Path) -> None:
        """Write all steps as a Parquet table, whole or not at all."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([("phase", pa.dictionary(pa.int8(), pa.string())), *((name, pa.int64()) for name in _ORDER)])
        with open_whole(path) as file, pq.ParquetWriter(file, schema) as writer:
            for columns in self.batches():
                writer.write_table(_arrow(columns))


def _arrow(columns: StepColumns) -> Any:
    """Return an Arrow table of the steps, made from buffers, since pyarrow's conversions would import pandas."""
    import pyarrow as pa

    ends = np.cumsum([0, *map(len, PHASES)], dtype=np.int32)
    names = pa.StringArray.from_buffers(len(PHASES), pa.py_buffer(ends), pa.py_buffer("".join(PHASES).encode()))
    codes = pa.py_buffer(columns["phase"].astype(np.int8))
    arrays = [pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int8(), len(columns["phase"]), [None, codes]), names)]
    for name in _ORDER:
        column = np.ascontiguousarray(columns[name])
        arrays.append(pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)]))
    return pa.Table.from_arrays(arrays, names=["phase", *_ORDER])


def where(columns: StepColumns, **values: int) -> StepColumns:
    """Return the steps whose columns have these values."""
    keep = np.logical_and.reduce([columns[name] == value for name, value in values.items()])
    return {name: column[keep] for name, column in columns.items()}


def counted_steps(columns: StepColumns, excluded: OutputMetric) -> StepColumns:
    """Return the columns of the steps that figures count: without the first and last steps of every block of each rank.

    `excluded` has the numbers of steps to exclude. A block is the steps between two checkpoints or evaluations of an epoch.
    """
    order, starts = _blocks(columns)
    lengths = np.diff(np.append(starts, len(order)))
    position = np.arange(len(order)) - np.repeat(starts, lengths)
    keep = (position >= excluded.exclude_start_steps) & (position < np.repeat(lengths, lengths) - excluded.exclude_end_steps)
    kept = np.sort(order[keep])
    return {name: column[kept] for name, column in columns.items()}


def block_sums(table: StepTable, phase: str, excluded: OutputMetric | None = None) -> StepColumns:
    """Return sums over the steps of each block of each rank, a row a block; with `excluded`, only over the steps that count.

    `steps` is the number of a block's steps, `square_s2` the sum of their squared seconds of computation.
    """
    parts = [_by_block(each if excluded is None else counted_steps(each, excluded)) for each in table.batches(phase)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _by_block(columns: StepColumns) -> StepColumns:
    order, starts = _blocks(columns)
    summed = {"steps": np.ones_like(order), **{name: columns[name] for name in _SUMMED}}
    summed["square_s2"] = (columns["compute_ns"] / 1e9) ** 2
    keys = {name: columns[name][order[starts]] for name in _BLOCK}
    return keys | {name: np.add.reduceat(column[order], starts) for name, column in summed.items()}


def _blocks(columns: StepColumns) -> tuple[Ints, Ints]:
    """Return (indices of the steps, sorted by block and step; position of each block's first step in this order)."""
    order = np.lexsort((columns["step"], *(columns[name] for name in reversed(_BLOCK))))
    keys = np.stack([columns[name][order] for name in _BLOCK])
    begins = np.ones(len(order), bool)
    begins[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    return order, np.flatnonzero(begins)


def accelerator_utilisation(counted: StepColumns) -> float | None:
    """Return the mean over ranks of the accelerator utilisation in percent; None if no steps are counted.

    As in MLPerf Storage, it is computation time over elapsed time of the counted steps or their sums. It is limited to 100 % for
    each rank, since an excluded step's delay may have shortened the sleeps of counted steps.
    """
    if not len(counted["rank"]):
        return None
    compute, elapsed = (np.bincount(counted["rank"], weights=counted[name]) for name in ("compute_ns", "step_ns"))
    ranks = elapsed > 0
    return 100.0 * float(np.minimum(1.0, compute[ranks] / elapsed[ranks]).mean())
