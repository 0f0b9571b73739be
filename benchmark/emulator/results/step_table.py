"""The steps of all ranks as a table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.journal import COLUMNS, PHASES, Ints, StepLog
from iotwin.common.files import open_whole


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
