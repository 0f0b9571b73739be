"""The order in which a job reads its files, and the bytes of each file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import OPEN, READ, WRITE, Calls, stable_order
from iotwin.tracesim.logbins import table

STEPS = ("first", "sequential", "forward", "backward", "again")
_FIRST, _SEQUENTIAL, _FORWARD, _BACKWARD, _AGAIN = range(len(STEPS))
_SLOT_BITS = 20
_TABLE = ("_key", "_begin", "_end")  # columns of the hash table of OffsetSteps
_FEWEST_FILES = 8  # least number of files whose order is measured: of few files, a shuffle is often nearly sorted by chance
PARTS = 64  # equal parts into which a large file is divided, to see in which order its bytes are read
_MOST_FILES = 32  # most data-set files for which files are divided into parts; of more files, the order of files suffices
_FEWEST_BYTES = 1 << 22  # least bytes of a file that is divided, so that a part has at least 64 KiB, a usual request size


class OffsetSteps:
    """Classifies each read and write by where it begins, compared with the previous call of its thread on its file (STEPS).

    A call is `first` if it is the first after an open, `sequential` if it begins where the previous call ended, and `again` if it
    begins where that call began. Otherwise it is `forward` or `backward`. Calls and bytes are summed per phase occurrence.
    """

    def __init__(self, occurrences: int, files: int) -> None:
        self._n, self._files = occurrences, max(files, 1)
        self.calls = np.zeros((occurrences, 2 * len(STEPS)))  # shape (occurrences, 2 * STEPS): reads, then writes
        self.bytes = np.zeros((occurrences, 2 * len(STEPS)))
        # A hash table of fixed size with the last call of each (thread, file). If another pair has overwritten the entry
        # of a pair, the next call of the latter counts as `first`.
        self._key = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        self._begin = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        self._end = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        # Calls whose (thread, file) has no entry, since the previous call may be in an earlier stretch of the trace. Rows: key,
        # begin, cell, bytes.
        self._unplaced: list[NDArray[np.int64]] = []

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = np.flatnonzero((calls.group == OPEN) | ((calls.group <= WRITE) & (calls.offset >= 0)))
        if len(used) == 0:
            return
        order = used[stable_order(calls.file[used])]
        order = order[stable_order(calls.thread[order])]
        step, unplaced = self._steps(calls, order)
        moving = calls.group[order] != OPEN
        rows = order[moving]
        cell = calls.group[rows] * len(STEPS) + step[moving]
        new = np.flatnonzero(unplaced[moving])
        key = calls.thread[rows[new]] * self._files + calls.file[rows[new]]
        slot = occurrence[rows[new]] * 2 * len(STEPS) + cell[new]
        self._unplaced.append(np.stack([key, calls.offset[rows[new]], slot, calls.moved_bytes[rows[new]]]))
        self.calls += table(occurrence[rows], cell, None, self._n, 2 * len(STEPS))
        self.bytes += table(occurrence[rows], cell, calls.moved_bytes[rows], self._n, 2 * len(STEPS))

    def later(self, other: "OffsetSteps") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        key, begin, cell, moved = np.concatenate([np.empty((4, 0), dtype=np.int64), *other._unplaced], axis=1)
        slot = _slot(key)
        known = self._key[slot] == key
        step = _step(begin, np.where(known, self._begin[slot], -1), np.where(known, self._end[slot], -1))
        for chosen, others, weight in ((self.calls, other.calls, np.ones(len(key))), (self.bytes, other.bytes, moved)):
            cells = others.ravel() - np.bincount(cell, weight, others.size) + np.bincount(cell + step, weight, others.size)
            chosen += cells.reshape(others.shape)
        still = self._key[slot] < 0
        self._unplaced.append(np.stack([key, begin, cell, moved])[:, still])
        touched = other._key >= 0
        for name in _TABLE:
            np.copyto(getattr(self, name), getattr(other, name), where=touched)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the empty entries of the hash table, which are most of what another process would receive."""
        used = np.flatnonzero(self._key >= 0)
        return vars(self) | {name: getattr(self, name)[used] for name in _TABLE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        slot = _slot(self._key)
        for name in _TABLE:
            entries = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
            entries[slot] = state[name]
            setattr(self, name, entries)

    def _steps(self, calls: Calls, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return each call's index into STEPS, and True for calls without an entry in the hash table, which count as `first`.

        `order` sorts the calls by thread, file and time.
        """
        key = calls.thread[order] * self._files + calls.file[order]
        opening = calls.group[order] == OPEN
        begin = np.where(opening, -1, calls.offset[order])
        end = np.where(opening, -1, begin + calls.moved_bytes[order])
        is_first = np.concatenate(([True], key[1:] != key[:-1]))
        slot = _slot(key[is_first])
        known = self._key[slot] == key[is_first]
        unplaced = is_first.copy()
        unplaced[is_first] = self._key[slot] < 0
        before_begin, before_end = np.roll(begin, 1), np.roll(end, 1)
        before_begin[is_first] = np.where(known, self._begin[slot], -1)
        before_end[is_first] = np.where(known, self._end[slot], -1)
        is_last = np.concatenate((is_first[1:], [True]))
        self._key[slot], self._begin[slot], self._end[slot] = key[is_last], begin[is_last], end[is_last]
        return _step(begin, before_begin, before_end), unplaced


def _step(begin: NDArray[np.int64], before_begin: NDArray[np.int64], before_end: NDArray[np.int64]) -> NDArray[np.int64]:
    conditions = [before_end < 0, begin == before_end, begin == before_begin, begin > before_end]
    return np.select(conditions, [_FIRST, _SEQUENTIAL, _AGAIN, _FORWARD], default=_BACKWARD)


def _slot(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the hash table's index for each key by Fibonacci hashing (Knuth, volume 3, 6.4)."""
    product = key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    slot: NDArray[np.int64] = (product >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
    return slot


class Visits:
    """Collects, for each phase occurrence, the data-set files that it reads, in order of first read, and its checkpoint files."""

    def __init__(self, files: int) -> None:
        self._files = max(files, 1)
        self._first = np.empty(self._files, dtype=np.int64)  # scratch
        self._last = {READ: np.full(self._files, -1, dtype=np.int64), WRITE: np.full(self._files, -1, dtype=np.int64)}
        self._visited: list[NDArray[np.int64]] = []  # occurrence * files + file
        self._written: list[NDArray[np.int64]] = []

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        self._visited.append(self._new(READ, 0, calls, occurrence))
        self._written.append(self._new(WRITE, 1, calls, occurrence))

    def later(self, other: "Visits") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._visited += other._visited
        self._written += other._written

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only `add` needs. A process that receives the object combines it with others."""
        return {"_files": self._files, "_visited": [_once(self._visited)], "_written": [_once(self._written)]}

    def _new(self, group: int, kind: int, calls: Calls, occurrence: NDArray[np.int64]) -> NDArray[np.int64]:
        used = (calls.group == group) & (calls.kind == kind) & (calls.moved_bytes > 0)
        file, occurrence = calls.file[used], occurrence[used]
        last = self._last[group]
        found = [np.empty(0, dtype=np.int64)]
        # Calls are in order of start, so those of one occurrence are consecutive, or in a few groups if phases are nested.
        for begin, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(occurrence)) + 1), len(file)]):
            files, current = file[begin:end], occurrence[begin:end]
            index = np.arange(len(files))
            self._first[files[::-1]] = index[::-1]  # of several values for one index, NumPy keeps the last
            fresh = files[(self._first[files] == index) & (last[files] != current)]
            last[fresh] = current[:1]
            found.append(current[:1] * self._files + fresh)
        return np.concatenate(found)

    def of_each(self, occurrences: int) -> list[NDArray[np.int64]]:
        """Return, for each phase occurrence, the file_ids that it reads, in order of first read."""
        visited = _once(self._visited)
        visited = visited[np.argsort(visited // self._files, kind="stable")]
        cuts = np.searchsorted(visited // self._files, np.arange(1, occurrences))
        return [part % self._files for part in np.split(visited, cuts)]

    def written_files(self, occurrences: int) -> NDArray[np.float64]:
        """Return the number of files that each phase occurrence writes, shape (occurrences,)."""
        return np.bincount(_once(self._written) // self._files, minlength=occurrences).astype(float)


class FileParts:
    """Collects which parts of large data-set files each phase occurrence reads, in order of first read."""

    def __init__(self, size_bytes: NDArray[np.int64]) -> None:
        """Divide the large files. `size_bytes[file_id]` is the size of a data-set file, 0 for other files."""
        large = np.flatnonzero(size_bytes >= _FEWEST_BYTES)
        self._large = large if np.count_nonzero(size_bytes) <= _MOST_FILES else large[:0]
        self._size_bytes = size_bytes
        self._visits = Visits(len(self._large) * PARTS)

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = np.flatnonzero(np.isin(calls.file, self._large) & (calls.offset >= 0))
        if not len(used):
            return
        own = calls.where(used)
        part = np.minimum(own.offset * PARTS // self._size_bytes[own.file], PARTS - 1)
        self._visits.add(replace(own, file=np.searchsorted(self._large, own.file) * PARTS + part), occurrence[used])

    def later(self, other: "FileParts") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._visits.later(other._visits)

    def of_each(self, occurrences: int) -> list[NDArray[np.int64]]:
        """Return, for each phase occurrence, the parts that it reads as file * PARTS + part, in order of first read."""
        return self._visits.of_each(occurrences)


def _once(found: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return the distinct numbers in the arrays `found`, in order of first appearance."""
    together = np.concatenate([np.empty(0, dtype=np.int64), *found])
    return together[np.sort(np.unique(together, return_index=True)[1])]


@dataclass(frozen=True)
class Order:
    """Statistics of the order in which each phase occurrence reads files: 0 is sorted, 1 is random, NaN if there are too few
    files.

    * `scatter`: how far apart successively read files are in the sorted list of names. It is their mean distance minus 1 (the
      distance in sorted order), divided by its expectation for a random order, (n + 1) / 3 - 1.
    * `drift`: how far a file's position moves from the phase's previous occurrence to this one. It is the mean distance divided
      by its expectation for a random order, (n**2 - 1) / 3n (Spearman's footrule; Diaconis and Graham 1977).
    * `jumps`: the mean scatter of the parts within large files.
    * `*_variance`: the statistic's variance under a random order.
    """

    scatter: NDArray[np.float64]
    scatter_variance: NDArray[np.float64]
    drift: NDArray[np.float64]
    drift_variance: NDArray[np.float64]
    jumps: NDArray[np.float64]
    jumps_variance: NDArray[np.float64]


def order_of(
    visits: Sequence[NDArray[np.int64]],
    phase: NDArray[np.int64],
    name_rank: NDArray[np.int64],
    visited_parts: Sequence[NDArray[np.int64]] = (),
    parts: int = 1,
) -> Order:
    """Return the statistics of file order. `visits` holds the file_ids that each phase occurrence reads, in order of first
    read.

    `phase` is the phase of each occurrence, `name_rank` each file's rank in order of name. `visited_parts` holds the parts of
    large files that each occurrence reads, as file * parts + part.
    """
    result = np.full((6, len(visits)), np.nan)
    for index, visited in enumerate(visited_parts):
        each = [visited[visited // parts == file] % parts for file in np.unique(visited // parts)]
        found = [_scatter(own) for own in each if len(own) >= _FEWEST_FILES]
        if found:
            result[4:, index] = np.mean(found, axis=0) / (1, len(found))
    before: dict[int, NDArray[np.int64]] = {}
    for index, files in enumerate(visits):
        if len(files) >= _FEWEST_FILES:
            result[:2, index] = _scatter(name_rank[files])
            if phase[index] in before:
                result[2:4, index] = _drift(files, before[phase[index]])
            before[phase[index]] = files
    return Order(*result)


def _scatter(rank: NDArray[np.int64]) -> tuple[float, float]:
    n = len(rank)
    position = np.empty(n)
    position[np.argsort(rank)] = np.arange(n)
    scale = (n + 1) / 3 - 1
    # One random distance has the variance (n + 1)(n - 2) / 18. The n - 1 distances are treated as independent.
    variance = (n + 1) * (n - 2) / 18 / (n - 1) / scale**2
    return min((float(np.abs(np.diff(position)).mean()) - 1) / scale, 1.0), variance


def _drift(files: NDArray[np.int64], before: NDArray[np.int64]) -> tuple[float, float]:
    common, here, there = np.intersect1d(files, before, assume_unique=True, return_indices=True)
    n = len(common)
    if n < _FEWEST_FILES:
        return np.nan, np.nan
    moved = np.abs(np.argsort(np.argsort(here)) - np.argsort(np.argsort(there)))
    expected = (n * n - 1) / 3
    return min(float(moved.sum()) / expected, 1.0), (n + 1) * (2 * n * n + 7) / 45 / expected**2
