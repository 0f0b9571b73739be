"""Concurrency: how many calls are in flight, and how many threads read the data set."""

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import READ, Calls
from iotwin.tracesim.logbins import BINS_PER_OCTAVE, log_bin, table
from iotwin.tracesim.phases import Occurrences

LEVEL_BINS = 12 * BINS_PER_OCTAVE + 1  # bins of a histogram of concurrent calls or threads, from 1 to 4096
_MOST_ARRAYS = 64  # of threads seen
WINDOWS = 8  # equal time windows of a phase occurrence; threads that read in different windows are not concurrent


def _level_bin(level: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum(log_bin(level), LEVEL_BINS - 1)


class InFlight:
    """Sums how long n calls are in flight: `time_ns`, shape (occurrences, LEVEL_BINS), is a histogram over n > 0."""

    def __init__(self, occurrences: Occurrences, begin_ns: int = 0, ends_ns: NDArray[np.int64] | None = None) -> None:
        """Start to count at `begin_ns`. `ends_ns`: when the calls that are then in flight end; None: no calls are."""
        self._occurrences, self._begin_ns = occurrences, begin_ns
        self.time_ns = np.zeros((occurrences.number, LEVEL_BINS))
        self._pending = np.empty(0, dtype=np.int64) if ends_ns is None else ends_ns  # ends of the calls in flight at _horizon
        self._horizon = begin_ns  # start of the latest call

    def add(self, calls: Calls) -> None:
        """Add a batch; batches must come in order of start."""
        ends = np.concatenate((self._pending, calls.start_ns + calls.duration_ns))
        horizon = calls.start_ns[-1]
        self._sweep(len(self._pending), calls.start_ns, ends[ends <= horizon], horizon)
        self._pending = ends[ends > horizon]

    def finish(self, end_ns: int = np.iinfo(np.int64).max) -> None:
        """Count the calls that are still in flight until they end, or until `end_ns` if that is earlier."""
        if len(self._pending):
            ends = self._pending[self._pending <= end_ns]
            self._sweep(len(self._pending), self._pending[:0], ends, min(int(self._pending.max()), end_ns))

    def later(self, other: "InFlight") -> None:
        """Add the times of `other`, which collected the calls that follow in the trace.

        The times of self end where `other` begins.
        """
        self.finish(other._begin_ns)
        self.time_ns += other.time_ns
        self._pending, self._horizon = other._pending, other._horizon

    def _sweep(self, level: int, starts: NDArray[np.int64], ends: NDArray[np.int64], horizon: int) -> None:
        # The lowest bit is 1 for a start and 0 for an end, so that ends precede starts of the same time.
        changes = np.sort(np.concatenate((ends << 1, starts << 1 | 1)))
        times = changes >> 1
        levels = level + np.cumsum((changes & 1) * 2 - 1)
        # Until the first change in this batch, as many calls are in flight as at the end of the batch before.
        times, levels = np.concatenate(([self._horizon], times)), np.concatenate(([level], levels))
        self._horizon = int(horizon)
        lengths = np.diff(times, append=horizon)
        used = (levels > 0) & (lengths > 0)
        cell = _level_bin(levels[used])
        self.time_ns += table(self._occurrences.at(times[used]), cell, lengths[used], self._occurrences.number, LEVEL_BINS)


class Readers:
    """Collects which threads read the data set in each phase occurrence, and in each of its WINDOWS time windows."""

    def __init__(self, occurrences: Occurrences) -> None:
        self._occurrences = occurrences
        self._seen: list[NDArray[np.int64]] = []  # values are (occurrence * WINDOWS + window) << 32 | thread

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = (calls.group == READ) & (calls.kind == 0) & (calls.moved_bytes > 0)
        occurrence = occurrence[used]
        window = self._occurrences.position(calls.start_ns[used], occurrence, WINDOWS)
        self._seen.append(np.unique((occurrence * WINDOWS + window) << 32 | calls.thread[used]))
        if len(self._seen) > _MOST_ARRAYS:
            self._seen = [np.unique(np.concatenate(self._seen))]

    def later(self, other: "Readers") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._seen += other._seen

    def counts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the number of reading threads of each phase occurrence, and a histogram of the number of reading threads per
        window.

        Shapes: (occurrences,) and (occurrences, LEVEL_BINS).
        """
        n = self._occurrences.number
        seen = np.unique(np.concatenate(self._seen)) if self._seen else np.empty(0, dtype=np.int64)
        window, readers = np.unique(seen >> 32, return_counts=True)
        windows = table(window // WINDOWS, _level_bin(readers), None, n, LEVEL_BINS)
        by_thread = np.unique((seen >> 32) // WINDOWS << 32 | seen & 0xFFFFFFFF)
        return np.bincount(by_thread >> 32, minlength=n).astype(float), windows
