"""The rhythm of reading the data set: times between reads, the pauses of each thread, and the bytes read between pauses."""

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import READ, WRITE, Calls, stable_order
from iotwin.tracesim.logbins import BINS, log_bin, table

SHORTEST_PAUSE_NS = 1_000_000  # ns; in shorter gaps between reads, a thread is assumed to process what it read, not to wait
_NOT_KNOWN = -2  # marks the pause before a thread's first call in a stretch; its length depends on the previous stretch
_MOST_ARRAYS = 64  # most arrays of runs before they are joined
_BURST_SHARE = 0.25  # a burst of reads ends with a pause of at least this share of the phase's typical pause


class Arrivals:
    """Sums the times between the starts of consecutive reads of the data set: `gap_ns`, shape (occurrences, BINS), by length."""

    def __init__(self, occurrences: int) -> None:
        self._n = occurrences
        self._first = np.empty((2, 0), dtype=np.int64)  # start and occurrence of the first read; no column if there was none yet
        self._last = self._first
        self.gap_ns = np.zeros((occurrences, BINS))

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = (calls.kind == 0) & (calls.group == READ)
        arrivals = np.stack([calls.start_ns[used], occurrence[used]])
        self._first = self._first if self._first.size else arrivals[:, :1]
        self._count(np.concatenate((self._last, arrivals), axis=1))
        self._last = arrivals[:, -1:] if arrivals.size else self._last

    def later(self, other: "Arrivals") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self.gap_ns += other.gap_ns
        self._count(np.concatenate((self._last, other._first), axis=1))
        self._first = self._first if self._first.size else other._first
        self._last = other._last if other._last.size else self._last

    def _count(self, arrivals: NDArray[np.int64]) -> None:
        start, owner = arrivals
        gap = np.diff(start)
        inside = owner[1:] == owner[:-1]
        self.gap_ns += table(owner[1:][inside], log_bin(gap[inside]), gap[inside], self._n, BINS)


class ReadRhythm:
    """Collects each thread's runs of data-set calls without a pause: the bytes of each run and the pause before it.

    A run ends at the end of its phase occurrence. The time between two occurrences is not a pause.
    """

    def __init__(self, phase: NDArray[np.int64]) -> None:
        """Begin without calls. `phase`: the phase of each occurrence."""
        self._n = len(phase)
        self._phase = phase
        self._end = np.empty(0, dtype=np.int64)  # end of the last call of each thread
        self._occurrence = np.empty(0, dtype=np.int64)  # phase occurrence of the last call of each thread, -1 if there was none
        self._first = np.empty(0, dtype=np.int64)  # start of the first run of each thread, whose pause is _NOT_KNOWN
        self._runs: list[NDArray[np.int64]] = []  # rows: thread, occurrence, pause_ns (-1: none, _NOT_KNOWN), bytes
        self.busy_ns = np.zeros(self._n)  # time in calls and in gaps shorter than a pause, summed over threads

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = np.flatnonzero((calls.kind == 0) & (calls.group != WRITE))
        if len(used) == 0:
            return
        used = used[stable_order(calls.thread[used])]
        calls, occurrence = calls.where(used), occurrence[used]
        self._grow(int(calls.thread[-1]) + 1)
        end = calls.start_ns + calls.duration_ns
        is_first = np.concatenate(([True], calls.thread[1:] != calls.thread[:-1]))
        is_last = np.concatenate((is_first[1:], [True]))
        before_end, before_occurrence = np.roll(end, 1), np.roll(occurrence, 1)
        before_end[is_first] = self._end[calls.thread[is_first]]
        before_occurrence[is_first] = self._occurrence[calls.thread[is_first]]
        self._end[calls.thread[is_last]] = end[is_last]
        self._occurrence[calls.thread[is_last]] = occurrence[is_last]
        pause = np.where(before_occurrence == occurrence, np.maximum(calls.start_ns - before_end, 0), -1)
        pause[before_occurrence < 0] = _NOT_KNOWN
        self._first[calls.thread[before_occurrence < 0]] = calls.start_ns[before_occurrence < 0]
        self._append(np.stack([calls.thread, occurrence, pause, calls.moved_bytes]))
        busy = calls.duration_ns + np.where(pause < SHORTEST_PAUSE_NS, np.maximum(pause, 0), 0)
        self.busy_ns += np.bincount(occurrence, weights=busy, minlength=self._n)

    def later(self, other: "ReadRhythm") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._grow(len(other._end))
        other._grow(len(self._end))
        runs = np.concatenate([np.empty((4, 0), dtype=np.int64), *other._runs], axis=1)
        first = np.flatnonzero(runs[2] == _NOT_KNOWN)
        thread, occurrence = runs[:2, first]
        start = other._first[thread]
        known, same = self._occurrence[thread] >= 0, self._occurrence[thread] == occurrence
        runs[2, first] = np.select([same, known], [np.maximum(start - self._end[thread], 0), -1], _NOT_KNOWN)
        short = same & (runs[2, first] < SHORTEST_PAUSE_NS)
        self.busy_ns += other.busy_ns + np.bincount(occurrence[short], runs[2, first][short], self._n)
        self._append(runs)
        self._first[thread[~known]] = start[~known]
        np.copyto(self._end, other._end, where=other._occurrence >= 0)
        np.copyto(self._occurrence, other._occurrence, where=other._occurrence >= 0)

    def _append(self, runs: NDArray[np.int64]) -> None:
        """Append `runs`. Join runs of a thread that no pause separates, so that memory grows only with the number of pauses."""
        self._runs.append(_joined_runs([runs]))
        if len(self._runs) > _MOST_ARRAYS:
            self._runs = [_joined_runs(self._runs)]

    def _grow(self, threads: int) -> None:
        missing = max(threads - len(self._end), 0)
        self._first = np.concatenate((self._first, np.zeros(missing, dtype=np.int64)))
        self._end = np.concatenate((self._end, np.zeros(missing, dtype=np.int64)))
        self._occurrence = np.concatenate((self._occurrence, np.full(missing, -1, dtype=np.int64)))

    def pauses_and_bursts(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return two histograms for each phase occurrence: time in pauses, by length; and bytes read in bursts, by size of burst.

        Both have the shape (occurrences, BINS). A burst is all that a thread reads between two long pauses.
        """
        thread, occurrence, pause, moved = _joined_runs(self._runs)
        paused = pause >= SHORTEST_PAUSE_NS
        pauses = table(occurrence[paused], log_bin(pause[paused]), pause[paused], self._n, BINS)
        phase = self._phase[occurrence]
        limit = np.zeros(len(pause), dtype=np.int64)
        for each in np.unique(phase):
            limit[phase == each] = _burst_limit(pause[paused & (phase == each)])
        _, occurrence, _, burst = _joined(np.stack([thread, occurrence, pause, moved]), limit)
        return pauses, table(occurrence, log_bin(burst), burst, self._n, BINS)


def _joined_runs(runs: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return all `runs` in order of thread and time. Runs of a thread that no pause separates are joined."""
    whole = np.concatenate([np.empty((4, 0), dtype=np.int64), *runs], axis=1)
    return _joined(whole[:, stable_order(whole[0])], SHORTEST_PAUSE_NS)


def _joined(runs: NDArray[np.int64], limit_ns: NDArray[np.int64] | int) -> NDArray[np.int64]:
    """Return `runs`, which are sorted by thread, with neighbouring runs of a thread joined if the pause is under `limit_ns`."""
    thread, _, pause, moved = runs
    changes = np.concatenate(([True], thread[1:] != thread[:-1]))[: len(thread)]
    begin = np.flatnonzero(changes | (pause < 0) | (pause >= limit_ns))
    return np.concatenate((runs[:3, begin], [np.add.reduceat(moved, begin) if len(begin) else moved]))


def _burst_limit(pause: NDArray[np.int64]) -> int:
    """Return the least pause in ns that ends a burst: _BURST_SHARE of the typical pause.

    Half of all pausing time is in pauses at least as long as the typical one.
    """
    if len(pause) == 0:
        return SHORTEST_PAUSE_NS
    longest_first = np.sort(pause)[::-1]
    time = np.cumsum(longest_first)
    return max(SHORTEST_PAUSE_NS, int(longest_first[np.searchsorted(time, time[-1] / 2)] * _BURST_SHARE))
