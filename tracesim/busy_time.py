"""Measures busy time: in each time bin of a phase, how long at least one read, write or block request is in flight.

Busy time is what a timeline draws as bars. Time with two calls in flight counts once.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.tracesim.calls import READ, WRITE, Calls
from iotwin.tracesim.phases import Occurrences

BUSY_BINS = 64  # number of equal time bins of a phase occurrence; dimensions.py blurs the bins over eight
ROWS = ("READ", "WRITE", "BIOR", "BIOW")
_GROUPS = (READ, WRITE)


class _Union:
    """Measures the time that a set of intervals covers. The intervals must be added in order of start.

    `before_ns`, shape (edges,), is the time in ns before each of `edges` that at least one interval covers.
    """

    def __init__(self, edges: NDArray[np.int64]) -> None:
        self._edges = edges
        self.before_ns = np.zeros(len(edges))
        self._covered_to = np.iinfo(np.int64).min

    def cover(self, end_ns: NDArray[np.int64]) -> None:
        """Ignore all time before the greatest of `end_ns` in intervals that are added later."""
        self._covered_to = max(self._covered_to, int(end_ns.max(initial=self._covered_to)))

    def add(self, start_ns: NDArray[np.int64], end_ns: NDArray[np.int64]) -> None:
        if not len(start_ns):
            return
        reach = np.maximum.accumulate(end_ns)
        # Cut each interval to the part that no earlier interval covers: the cut intervals are disjoint and in order.
        covered = np.maximum(np.concatenate(([self._covered_to], reach[:-1])), self._covered_to)
        begin = np.maximum(start_ns, covered)
        fresh = end_ns > begin
        begin, end = begin[fresh], end_ns[fresh]
        self._covered_to = max(self._covered_to, int(reach[-1]))
        if not len(begin):
            return
        total = np.concatenate(([0], np.cumsum(end - begin)))
        whole = np.searchsorted(begin, self._edges, side="right")  # number of intervals that begin before each edge
        last_end = np.concatenate(([np.iinfo(np.int64).min], end))[whole]
        self.before_ns += total[whole] - np.maximum(last_end - self._edges, 0) * (whole > 0)


class BusyTime:
    """Collects busy times: for each kind of call or request (ROWS), the time in which at least one is in flight.

    Each occurrence of a phase, such as each epoch, is divided into BUSY_BINS equal bins, which have a busy time each.
    """

    def __init__(self, occurrences: Occurrences) -> None:
        self._n = occurrences.number
        steps = np.arange(BUSY_BINS + 1) / BUSY_BINS
        edges = occurrences.start_ns[:, None] + (occurrences.span_ns[:, None] * steps).astype(np.int64)
        self._unions = [_Union(edges.ravel()) for _ in ROWS]

    def add(self, calls: Calls) -> None:
        """Add a batch of calls; batches must come in order of start."""
        for row, group in enumerate(_GROUPS):
            chosen = (calls.group == group) & (calls.moved_bytes > 0)
            self._unions[row].add(calls.start_ns[chosen], calls.start_ns[chosen] + calls.duration_ns[chosen])

    def begin_with(self, in_flight: Calls) -> None:
        """Do not count the calls `in_flight` again: they began in an earlier stretch of the trace, which counts their time."""
        for row, group in enumerate(_GROUPS):
            chosen = (in_flight.group == group) & (in_flight.moved_bytes > 0)
            self._unions[row].cover(in_flight.start_ns[chosen] + in_flight.duration_ns[chosen])

    def later(self, other: "BusyTime") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        for union, its in zip(self._unions, other._unions, strict=True):
            union.before_ns += its.before_ns

    def add_block(self, block: pd.DataFrame) -> None:
        """Add all block requests of the trace, in order of issue. Requests that never completed are ignored."""
        block = block[block["duration_ns"].notna()]
        for row, op in enumerate(("read", "write"), start=len(_GROUPS)):
            chosen = block[block["op"] == op]
            start = chosen["issue_ns"].to_numpy(np.int64)
            self._unions[row].add(start, start + chosen["duration_ns"].to_numpy(np.int64))

    def time_ns(self) -> NDArray[np.float64]:
        """Return the busy time in ns, shape (occurrences, rows, BUSY_BINS)."""
        before = np.stack([union.before_ns.reshape(self._n, BUSY_BINS + 1) for union in self._unions], axis=1)
        return np.diff(before, axis=2)
