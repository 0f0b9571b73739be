"""Checkpoints: how much of the data set is read from one to the next, and while one is written; how many at once; what stays."""

import numpy as np
from numpy.typing import NDArray

from tracesim.calls import FILE_KINDS, OPEN, READ, SYNC, WRITE, Calls, stable_order
from tracesim.logbins import BINS, log_bin
from tracesim.phases import Occurrences

_DATA, _CHECKPOINT = FILE_KINDS.index("dataset"), FILE_KINDS.index("checkpoint")
_WHOLE = 1 << 40  # what all that is read counts as, so that shares of it are whole numbers to log_bin
_ENOUGH_READS = 2.0  # usual in the time of all checkpoints together, for what falls into them to be no chance
_BINS = 1 << 16  # of equal length, over the run: the times of reads are known as exactly


class Removals:
    """Counts the checkpoint files that were removed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def extend(self, later: "Removals") -> None:
        """Take in what was found in calls after these."""
        self.count += later.count


class Saving:
    """Collects when bytes of the data set were read, and from when to when each checkpoint file was written."""

    def __init__(self, occurrences: Occurrences) -> None:
        self._begin_ns = int(occurrences.start_ns.min())
        self._end_ns = max(int((occurrences.start_ns + occurrences.span_ns).max()), self._begin_ns + 1)
        self._read_bytes = np.zeros(_BINS)
        self._rows: list[NDArray[np.int64]] = []  # file, whether it begins with an open, first start, last end, whether written

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch, in order of start."""
        del occurrence  # of the whole run
        reads = (calls.kind == _DATA) & (calls.group == READ) & (calls.moved_bytes > 0)
        position = (calls.start_ns[reads] - self._begin_ns) / (self._end_ns - self._begin_ns) * _BINS
        position = np.clip(position, 0, _BINS - 1).astype(np.int64)
        self._read_bytes += np.bincount(position, calls.moved_bytes[reads], _BINS)
        used = np.flatnonzero((calls.kind == _CHECKPOINT) & np.isin(calls.group, (OPEN, WRITE, SYNC)))
        if not len(used):
            return
        own = calls.where(used[stable_order(calls.file[used])])
        opens = own.group == OPEN
        begin = np.flatnonzero(np.concatenate(([True], own.file[1:] != own.file[:-1])) | opens)
        written = (own.group == WRITE) & (own.moved_bytes > 0)
        ends_ns = np.where(opens, own.start_ns, own.start_ns + own.duration_ns)
        self._rows.append(np.stack([
            own.file[begin], opens[begin], own.start_ns[begin], np.maximum.reduceat(ends_ns, begin),
            np.logical_or.reduceat(written, begin),
        ]))  # fmt: skip

    def extend(self, later: "Saving") -> None:
        """Take in what was found in calls after these."""
        self._read_bytes += later._read_bytes
        self._rows += later._rows

    def spans_ns(self) -> NDArray[np.int64]:
        """Return from when to when each checkpoint file was written, each time it was, in order of beginning; shape (n, 2)."""
        rows = np.concatenate([np.empty((5, 0), np.int64), *self._rows], axis=1)
        file, opened, start, end, written = rows[:, np.argsort(rows[0], kind="stable")]
        if not len(file):
            return np.empty((0, 2), np.int64)
        first = np.flatnonzero(np.concatenate(([True], file[1:] != file[:-1])) | (opened > 0))
        spans = np.stack([start[first], np.maximum.reduceat(end, first)], axis=1)[np.add.reduceat(written, first) > 0]
        in_order: NDArray[np.int64] = spans[np.argsort(spans[:, 0], kind="stable")]
        return in_order

    def between_reads(self) -> NDArray[np.float64]:
        """Return the shares of the data set's reading that lie between one file's beginning and the next's, by size; (BINS,)."""
        read = np.diff(self._until(self.spans_ns()[:, 0]))
        shares = read[read > 0] / self._read_bytes.sum()
        counted = np.bincount(log_bin(np.maximum(shares * _WHOLE, 1).astype(np.int64)), weights=shares, minlength=BINS)
        return counted.astype(np.float64)

    def beside(self) -> float:
        """Return how fast the data set is read while checkpoints are written, over the rest of the reading; at most 1.

        Less, in proportion, where the rest of the reading would not make _ENOUGH_READS in that time: whether one read fell into
        checkpoints of a millisecond is chance.
        """
        total = float(self._read_bytes.sum())
        if not total:
            return 0.0
        bins = np.flatnonzero(self._read_bytes)[[0, -1]] + (0, 1)
        spans = np.clip(self.spans_ns(), *(self._begin_ns + bins / _BINS * (self._end_ns - self._begin_ns)))
        reach = np.maximum.accumulate(spans[:, 1]) if len(spans) else spans[:, 1]
        begin = np.maximum(spans[:, 0], np.concatenate(([-np.inf], reach[:-1]))[: len(spans)])
        within_ns = float((reach - np.minimum(begin, reach)).sum())
        within = float((self._until(reach) - self._until(np.minimum(begin, reach))).sum())
        outside_ns = float(bins[1] - bins[0]) / _BINS * (self._end_ns - self._begin_ns) - within_ns
        if not within_ns:
            return 0.0
        if total <= within or outside_ns <= 0:
            return 1.0
        usual = (total - within) / outside_ns * within_ns
        reads = usual / (total / np.count_nonzero(self._read_bytes))
        return float(min(within / usual, 1.0) * min(reads / _ENOUGH_READS, 1.0))

    def at_once(self) -> float:
        """Return the mean number of checkpoint files that were being written while any was; 0 without one."""
        spans = self.spans_ns()
        if not len(spans):
            return 0.0
        reach = np.maximum.accumulate(spans[:, 1])
        begin = np.maximum(spans[:, 0], np.concatenate(([spans[0, 0]], reach[:-1])))
        within_ns = float((reach - np.minimum(begin, reach)).sum())
        return float((spans[:, 1] - spans[:, 0]).sum()) / within_ns if within_ns else 1.0

    def _until(self, time_ns: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """Bytes of the data set read before each time."""
        edges = np.linspace(self._begin_ns, self._end_ns, _BINS + 1)
        return np.interp(time_ns, edges, np.concatenate(([0.0], np.cumsum(self._read_bytes))))
