"""How much happens at once: calls in flight, and threads that read the data set."""

import numpy as np
from numpy.typing import NDArray

from tracesim.calls import READ, Calls
from tracesim.logbins import BINS_PER_OCTAVE, log_bin, table
from tracesim.phases import Occurrences

LEVEL_BINS = 12 * BINS_PER_OCTAVE + 1  # up to 4096 at once
WINDOWS = 8  # of equal length, in each occurrence of a phase


def _level_bin(level: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.minimum(log_bin(level), LEVEL_BINS - 1)


class InFlight:
    """Time with so many calls in flight, per occurrence: `time_ns`, (occurrences, LEVEL_BINS). Time with none is left out."""

    def __init__(self, occurrences: Occurrences, begin_ns: int = 0, ends_ns: NDArray[np.int64] | None = None) -> None:
        """Begin at `begin_ns`, when calls that end at `ends_ns` are in flight."""
        self._occurrences = occurrences
        self.time_ns = np.zeros((occurrences.number, LEVEL_BINS))
        # Ends of calls in flight after the last start seen, and that start.
        self._pending = np.empty(0, dtype=np.int64) if ends_ns is None else ends_ns
        self._horizon = begin_ns

    def add(self, calls: Calls) -> None:
        """Add one batch, which starts no earlier than the one before it did."""
        ends = np.concatenate((self._pending, calls.start_ns + calls.duration_ns))
        horizon = calls.start_ns[-1]
        self._sweep(len(self._pending), calls.start_ns, ends[ends <= horizon], horizon)
        self._pending = ends[ends > horizon]

    def finish(self, end_ns: int = np.iinfo(np.int64).max) -> None:
        """Count the calls still in flight to their ends, or to `end_ns`."""
        if len(self._pending):
            ends = self._pending[self._pending <= end_ns]
            self._sweep(len(self._pending), self._pending[:0], ends, min(int(self._pending.max()), end_ns))

    def extend(self, later: "InFlight") -> None:
        """Take in what was found from where this one finished."""
        self.time_ns += later.time_ns

    def _sweep(self, level: int, starts: NDArray[np.int64], ends: NDArray[np.int64], horizon: int) -> None:
        # The lowest bit tells a start from an end; at the same time, ends come first.
        changes = np.sort(np.concatenate((ends << 1, starts << 1 | 1)))
        times = changes >> 1
        levels = level + np.cumsum((changes & 1) * 2 - 1)
        # Between the last sweep and the first change in this one, the level is the carried one.
        times, levels = np.concatenate(([self._horizon], times)), np.concatenate(([level], levels))
        self._horizon = int(horizon)
        lengths = np.diff(times, append=horizon)
        used = (levels > 0) & (lengths > 0)
        cell = _level_bin(levels[used])
        self.time_ns += table(self._occurrences.at(times[used]), cell, lengths[used], self._occurrences.number, LEVEL_BINS)


class Readers:
    """Which threads read the data set in each occurrence, and in each of WINDOWS equal windows of it."""

    def __init__(self, occurrences: Occurrences) -> None:
        self._occurrences = occurrences
        self._seen: list[NDArray[np.int64]] = []  # (occurrence * WINDOWS + window) << 32 | thread

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch; `occurrence` has one entry a call."""
        used = (calls.group == READ) & (calls.kind == 0) & (calls.moved_bytes > 0)
        occurrence = occurrence[used]
        window = self._occurrences.position(calls.start_ns[used], occurrence, WINDOWS)
        self._seen.append(np.unique((occurrence * WINDOWS + window) << 32 | calls.thread[used]))

    def extend(self, later: "Readers") -> None:
        """Take in what was found in calls after these."""
        self._seen += later._seen

    def counts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the readers of each occurrence, (occurrences,), and windows by number of readers, (occurrences, LEVEL_BINS)."""
        n = self._occurrences.number
        seen = np.unique(np.concatenate(self._seen)) if self._seen else np.empty(0, dtype=np.int64)
        window, readers = np.unique(seen >> 32, return_counts=True)
        windows = table(window // WINDOWS, _level_bin(readers), None, n, LEVEL_BINS)
        by_thread = np.unique((seen >> 32) // WINDOWS << 32 | seen & 0xFFFFFFFF)
        return np.bincount(by_thread >> 32, minlength=n).astype(float), windows
