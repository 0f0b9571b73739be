"""How a job writes checkpoint files: how many at once, how many it removes, how much data it reads between and during writes."""

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import FILE_KINDS, OPEN, READ, SYNC, WRITE, Calls, stable_order
from iotwin.tracesim.logbins import BINS, log_bin
from iotwin.tracesim.phases import Occurrences

_DATA, _CHECKPOINT = FILE_KINDS.index("dataset"), FILE_KINDS.index("checkpoint")
_WHOLE = 1 << 40  # factor by which shares in [0, 1] are multiplied for log_bin, which requires values from 1 on
# If fewer reads than this are expected during all checkpoints together, `rate_during` is reduced in proportion. Otherwise, a
# single read during short checkpoints would look like reading at full speed.
_ENOUGH_READS = 2.0
_BINS = 1 << 16  # time bins over the run, in which read bytes are summed to bound the memory


class CheckpointWriting:
    """Collects when the job read the data set, when it wrote each checkpoint file, and how many of these it removed."""

    removed_files = 0

    def __init__(self, occurrences: Occurrences) -> None:
        self._begin_ns = int(occurrences.start_ns.min())
        self._end_ns = max(int((occurrences.start_ns + occurrences.span_ns).max()), self._begin_ns + 1)
        self._read_bytes = np.zeros(_BINS)
        # rows: file, 1 if its first call is an open, start of its first call, end of its last call, 1 if written
        self._rows: list[NDArray[np.int64]] = []

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch of calls, in order of start."""
        del occurrence  # all values of this class are for the whole run, not for each occurrence
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

    def later(self, other: "CheckpointWriting") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._read_bytes += other._read_bytes
        self._rows += other._rows
        self.removed_files += other.removed_files

    def spans_ns(self) -> NDArray[np.int64]:
        """Return begin and end (ns) of the writing of each checkpoint file, shape (n, 2), in order of begin."""
        rows = np.concatenate([np.empty((5, 0), np.int64), *self._rows], axis=1)
        file, opened, start, end, written = rows[:, np.argsort(rows[0], kind="stable")]
        if not len(file):
            return np.empty((0, 2), np.int64)
        first = np.flatnonzero(np.concatenate(([True], file[1:] != file[:-1])) | (opened > 0))
        spans = np.stack([start[first], np.maximum.reduceat(end, first)], axis=1)[np.add.reduceat(written, first) > 0]
        in_order: NDArray[np.int64] = spans[np.argsort(spans[:, 0], kind="stable")]
        return in_order

    def between_reads(self) -> NDArray[np.float64]:
        """Return a histogram of the shares of all data-set bytes that are read between successive checkpoint files, shape
        (BINS,).

        A bin holds the sum of the shares of that size.
        """
        read = np.diff(self._until(self.spans_ns()[:, 0]))
        shares = read[read > 0] / self._read_bytes.sum()
        counted = np.bincount(log_bin(np.maximum(shares * _WHOLE, 1).astype(np.int64)), weights=shares, minlength=BINS)
        return counted.astype(np.float64)

    def rate_during(self) -> float:
        """Return the rate (bytes/s) of reading the data set during checkpoints, divided by the rate otherwise; at most 1.

        If fewer than _ENOUGH_READS reads are expected during all checkpoints, the result is reduced in proportion.
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
        """Return the mean number of checkpoint files being written while at least one is; 0 without checkpoints."""
        spans = self.spans_ns()
        if not len(spans):
            return 0.0
        reach = np.maximum.accumulate(spans[:, 1])
        begin = np.maximum(spans[:, 0], np.concatenate(([spans[0, 0]], reach[:-1])))
        within_ns = float((reach - np.minimum(begin, reach)).sum())
        return float((spans[:, 1] - spans[:, 0]).sum()) / within_ns if within_ns else 1.0

    def _until(self, time_ns: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
        """Return, for each of `time_ns`, how many data-set bytes were read before it."""
        edges = np.linspace(self._begin_ns, self._end_ns, _BINS + 1)
        return np.interp(time_ns, edges, np.concatenate(([0.0], np.cumsum(self._read_bytes))))
