"""When something is going on: the share of each stretch of a phase in which a read, a write or a block request is in flight.

This is what a timeline's bars show: a bar is there while at least one call is, however many there are.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tracesim.calls import READ, WRITE, Calls
from tracesim.phases import Occurrences

BUSY_BINS = 64  # of equal length, in each occurrence of a phase
ROWS = ("READ", "WRITE", "BIOR", "BIOW")
_GROUPS = (READ, WRITE)


class _Union:
    """Time covered by intervals that come in order of start, before each of some edges: `before_ns`, (edges,)."""

    def __init__(self, edges: NDArray[np.int64]) -> None:
        self._edges = edges
        self.before_ns = np.zeros(len(edges))
        self._covered_to = np.iinfo(np.int64).min

    def cover(self, end_ns: NDArray[np.int64]) -> None:
        """Take everything up to the last of `end_ns` as covered already."""
        self._covered_to = max(self._covered_to, int(end_ns.max(initial=self._covered_to)))

    def add(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> None:
        if not len(start_ns):
            return
        reach = np.maximum.accumulate(end_ns)
        # What of each interval no earlier one covers; these parts do not overlap and rise.
        covered = np.maximum(np.concatenate(([self._covered_to], reach[:-1])), self._covered_to)
        begin = np.maximum(start_ns, covered)
        fresh = end_ns > begin
        begin, end = begin[fresh], end_ns[fresh]
        self._covered_to = max(self._covered_to, int(reach[-1]))
        if not len(begin):
            return
        total = np.concatenate(([0], np.cumsum(end - begin)))
        whole = np.searchsorted(begin, self._edges, side="right")  # parts that begin before the edge
        last_end = np.concatenate(([np.iinfo(np.int64).min], end))[whole]
        self.before_ns += total[whole] - np.maximum(last_end - self._edges, 0) * (whole > 0)


class Busy:
    """Busy time per occurrence: `time_ns`, (occurrences, rows, BUSY_BINS); the rows of block requests come from `add_block`."""

    def __init__(self, occurrences: Occurrences) -> None:
        self._n = occurrences.number
        steps = np.arange(BUSY_BINS + 1) / BUSY_BINS
        edges = occurrences.start_ns[:, None] + (occurrences.span_ns[:, None] * steps).astype(np.int64)
        self._unions = [_Union(edges.ravel()) for _ in ROWS]

    def add(self, calls: Calls) -> None:
        """Add one batch of calls, which starts no earlier than the one before it did."""
        for row, group in enumerate(_GROUPS):
            chosen = (calls.group == group) & (calls.moved_bytes > 0)
            self._unions[row].add(calls.start_ns[chosen], calls.start_ns[chosen] + calls.duration_ns[chosen])

    def begin_with(self, in_flight: Calls) -> None:
        """Take these calls, which started earlier, as counted already."""
        for row, group in enumerate(_GROUPS):
            chosen = (in_flight.group == group) & (in_flight.moved_bytes > 0)
            self._unions[row].cover(in_flight.start_ns[chosen] + in_flight.duration_ns[chosen])

    def extend(self, later: "Busy") -> None:
        """Take in what was found in calls after these."""
        for union, other in zip(self._unions, later._unions, strict=True):
            union.before_ns += other.before_ns

    def add_block(self, block: pd.DataFrame) -> None:
        """Add all block requests, in order of issue; those that never completed are left out."""
        block = block[block["duration_ns"].notna()]
        for row, op in enumerate(("read", "write"), start=len(_GROUPS)):
            chosen = block[block["op"] == op]
            start = chosen["issue_ns"].to_numpy(np.int64)
            self._unions[row].add(start, start + chosen["duration_ns"].to_numpy(np.int64))

    def time_ns(self) -> NDArray[np.float64]:
        """Return the busy time of each row in each of the equal parts of each occurrence."""
        before = np.stack([union.before_ns.reshape(self._n, BUSY_BINS + 1) for union in self._unions], axis=1)
        return np.diff(before, axis=2)
