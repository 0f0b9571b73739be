"""The steps of all ranks as a table, and accelerator utilisation (AU), as in summary.json, N_output.json and dlio.log."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.journal import COLUMNS, PHASES, Ints, StepLog
from iotwin.common.files import open_whole
from iotwin.workload_yaml import OutputMetric


class StepTable:
    """The steps of all ranks, by column."""

    def __init__(self, logs: Sequence[StepLog]) -> None:
        rows = [log.rows() for log in logs]
        stacked = np.concatenate(rows) if rows else np.empty((0, len(COLUMNS)), np.int64)
        self.columns: dict[str, Ints] = {name: stacked[:, index] for index, name in enumerate(COLUMNS)}
        self.columns["rank"] = np.repeat(np.arange(len(rows)), [len(part) for part in rows]).astype(np.int64)

    def of(self, phase: str, epoch: int | None = None, rank: int | None = None) -> dict[str, Ints]:
        """Return the columns of the steps of one phase, and only of `epoch` and `rank` if they are given."""
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
        """Return an Arrow table of the steps, made from buffers, since pyarrow's conversions would import pandas."""
        import pyarrow as pa

        ends = np.cumsum([0, *map(len, PHASES)], dtype=np.int32)
        names = pa.StringArray.from_buffers(len(PHASES), pa.py_buffer(ends), pa.py_buffer("".join(PHASES).encode()))
        codes = pa.py_buffer(self.columns["phase"].astype(np.int8))
        arrays = [
            pa.DictionaryArray.from_arrays(pa.Array.from_buffers(pa.int8(), len(self.columns["phase"]), [None, codes]), names)
        ]
        order = ("rank", *COLUMNS[1:])
        for name in order:
            column = np.ascontiguousarray(self.columns[name])
            arrays.append(pa.Array.from_buffers(pa.int64(), len(column), [None, pa.py_buffer(column)]))
        return pa.Table.from_arrays(arrays, names=["phase", *order])


def counted_steps(columns: Mapping[str, Ints], excluded: OutputMetric) -> dict[str, Ints]:
    """Return the columns of the steps that figures count: without the first and last steps of every block of each rank.

    `excluded` has the numbers of steps to exclude. A block is the steps between two checkpoints or evaluations of an epoch.
    """
    order = np.lexsort((columns["step"], columns["block"], columns["epoch"], columns["rank"]))
    keys = np.stack([columns[name][order] for name in ("rank", "epoch", "block")])
    begins = np.ones(len(order), bool)
    begins[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    starts = np.flatnonzero(begins)
    lengths = np.diff(np.append(starts, len(order)))
    position = np.arange(len(order)) - np.repeat(starts, lengths)
    keep = (position >= excluded.exclude_start_steps) & (position < np.repeat(lengths, lengths) - excluded.exclude_end_steps)
    kept = np.sort(order[keep])
    return {name: column[kept] for name, column in columns.items()}


def accelerator_utilisation(columns: Mapping[str, Ints], excluded: OutputMetric) -> float | None:
    """Return the mean over ranks of the accelerator utilisation in percent; None if no steps are counted.

    As in MLPerf Storage, it is computation time over elapsed time of the counted steps. It is limited to 100 % for each rank,
    since an excluded step's delay may have shortened the sleeps of counted steps.
    """
    counted = counted_steps(columns, excluded)
    if not len(counted["step"]):
        return None
    compute, elapsed = (np.bincount(counted["rank"], weights=counted[name]) for name in ("compute_ns", "step_ns"))
    ranks = elapsed > 0
    return 100.0 * float(np.minimum(1.0, compute[ranks] / elapsed[ranks]).mean())
