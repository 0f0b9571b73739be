"""Count the bytes that a job reads or writes, by time and by address in its files."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from iotwin.trace_visuals.bins import Floats, Grid, Spread
from iotwin.trace_visuals.call_columns import CallColumns, Ints

_COLUMNS, _ROWS = 1024, 160


@dataclass(frozen=True)
class Heat:
    """Bytes read or written, by interval of time and range of addresses. The address axis has all files, one after another."""

    size_bytes: Floats  # shape (columns of time, rows of address)
    time: Grid
    address: Grid
    file_ids: Ints  # ids of the files, in the order of the address axis
    bases: Ints  # first address of each file


class HeatMap:
    """Accumulates the reads or writes of some files. The address axis has the files `file_ids` one after another."""

    def __init__(self, file_ids: Ints, extent_bytes: Ints, group: int, begin_ns: int, end_ns: int) -> None:
        self._file_ids = file_ids
        sizes = extent_bytes[file_ids]
        self._bases = np.cumsum(sizes) - sizes
        self._base_of = np.full(len(extent_bytes), -1, dtype=np.int64)
        self._base_of[file_ids] = self._bases
        self._group = group
        self._time = Grid.covering(begin_ns, end_ns, _COLUMNS)
        self._address = Grid.covering(0, int(sizes.sum()), _ROWS)
        self._spread = Spread(self._address, _COLUMNS)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only `add` needs."""
        return vars(self) | {"_base_of": None}

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls. All bytes of a call count at its start time, spread over the addresses that they cover."""
        chosen = calls.pick((calls.group == self._group) & calls.storage & (calls.offset >= 0) & (calls.size_bytes > 0))
        base = self._base_of[chosen.file_id]
        chosen, base = chosen.pick(base >= 0), base[base >= 0]
        column = np.clip((chosen.start_ns - self._time.origin) // self._time.width, 0, _COLUMNS - 1)
        start = base + chosen.offset
        self._spread.add(column, start, start + chosen.size_bytes, 1.0)

    def later(self, other: "HeatMap") -> None:
        """Add the bytes of `other`."""
        self._spread.later(other._spread)

    def result(self) -> Heat | None:
        """Return the accumulated bytes; None if no byte was transferred."""
        sums = self._spread.sums()
        return Heat(sums, self._time, self._address, self._file_ids, self._bases) if sums.any() else None
