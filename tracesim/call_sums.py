"""Sums over calls: counts and bytes, request sizes, activity over a phase, file extents and latencies."""

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.columns import add_at
from iotwin.tracesim.calls import FILE_KINDS, GROUPS, WRITE, Calls
from iotwin.tracesim.logbins import BINS, log_bin, table
from iotwin.tracesim.phases import Occurrences

ACTIVITY_BINS = 64  # number of equal time bins of a phase occurrence, as many as a timeline has
_KINDS, _GROUPS = len(FILE_KINDS), len(GROUPS)


class CallSums:
    """Sums calls and bytes by file kind and operation, request sizes and activity per phase occurrence, and bytes per file."""

    def __init__(self, occurrences: Occurrences, files: int) -> None:
        n = occurrences.number
        self._occurrences, self._n = occurrences, n
        self.calls = np.zeros((n, _KINDS * _GROUPS))
        self.bytes = np.zeros((n, _KINDS * _GROUPS))
        self.size_calls = np.zeros((n, _KINDS * 2 * BINS))  # by file kind, read or write, size
        self.size_bytes = np.zeros((n, _KINDS * 2 * BINS))
        self.activity = np.zeros((n, ACTIVITY_BINS))  # bytes
        self.latency = np.zeros((_GROUPS, BINS))  # calls by duration in ns
        self.file_read_bytes = np.zeros(files)
        self.file_written_bytes = np.zeros(files)
        self.file_extent_bytes = np.zeros(files, dtype=np.int64)  # largest end offset of a read or write

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        cell = calls.kind * _GROUPS + calls.group
        self.calls += table(occurrence, cell, None, self._n, _KINDS * _GROUPS)
        self.bytes += table(occurrence, cell, calls.moved_bytes, self._n, _KINDS * _GROUPS)
        self.latency += table(calls.group, log_bin(calls.duration_ns), None, _GROUPS, BINS)
        moving = calls.moved_bytes > 0
        self._add_moving(calls.where(moving), occurrence[moving])

    def later(self, other: "CallSums") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        for name, sums in vars(self).items():
            if isinstance(sums, np.ndarray):
                how = np.maximum if sums is self.file_extent_bytes else np.add
                how(sums, getattr(other, name), out=sums)

    def _add_moving(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        moved = calls.moved_bytes
        cell = (calls.kind * 2 + calls.group) * BINS + log_bin(moved)
        columns = _KINDS * 2 * BINS
        self.size_calls += table(occurrence, cell, None, self._n, columns)
        self.size_bytes += table(occurrence, cell, moved, self._n, columns)
        position = self._occurrences.position(calls.start_ns, occurrence, ACTIVITY_BINS)
        self.activity += table(occurrence, position, moved, self._n, ACTIVITY_BINS)
        writing = calls.group == WRITE
        for sums, chosen in ((self.file_read_bytes, ~writing), (self.file_written_bytes, writing)):
            add_at(sums, calls.file[chosen], moved[chosen])
        np.maximum.at(self.file_extent_bytes, calls.file, calls.offset + moved)
