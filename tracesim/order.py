"""The order in which a job reads its files, and the bytes of each file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import OPEN, READ, WRITE, Calls, stable_order
from iotwin.tracesim.logbins import table

STEPS = ("first", "sequential", "forward", "backward", "again")
_FIRST, _SEQUENTIAL, _FORWARD, _BACKWARD, _AGAIN = range(len(STEPS))
_SLOT_BITS = 20
_FEWEST_FILES = 8  # files: an order of 7 is in order by chance once in 5,040 shuffles, of 4 once in 24
PARTS = 64  # equal parts of a file: samples of a 64th of a file or larger show their order
_MOST_FILES = 32  # files: the order of more files shows the job's order without their parts
_FEWEST_BYTES = 1 << 22  # bytes of a file with parts: a part is then 64 KiB, a request of usual size, or larger


class OffsetSteps:
    """Counts the steps between consecutive reads and writes of one thread on a file, per occurrence.

    A step is `first` after an open, `sequential` from the end of the previous call, `again` from its begin, else `forward` or
    `backward`.
    """

    def __init__(self, occurrences: int, files: int) -> None:
        self._n, self._files = occurrences, max(files, 1)
        self.calls = np.zeros((occurrences, 2 * len(STEPS)))  # by read or write, step
        self.bytes = np.zeros((occurrences, 2 * len(STEPS)))
        # The last call of each (thread, file), in a table of fixed size: a pair whose entry another pair took counts as first.
        self._key = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        self._begin = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        self._end = np.full(1 << _SLOT_BITS, -1, dtype=np.int64)
        # Calls that found no entry: the chunk before this one may hold their previous call.
        self._unplaced: list[NDArray[np.int64]] = []  # rows: key, begin, cell of `calls`, bytes

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch; `occurrence` has one entry a call."""
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

    def extend(self, later: "OffsetSteps") -> None:
        """Add what `later` collected from the calls after these."""
        key, begin, cell, moved = np.concatenate([np.empty((4, 0), dtype=np.int64), *later._unplaced], axis=1)
        slot = _slot(key)
        known = self._key[slot] == key
        step = _step(begin, np.where(known, self._begin[slot], -1), np.where(known, self._end[slot], -1))
        for chosen, others, weight in ((self.calls, later.calls, np.ones(len(key))), (self.bytes, later.bytes, moved)):
            cells = others.ravel() - np.bincount(cell, weight, others.size) + np.bincount(cell + step, weight, others.size)
            chosen += cells.reshape(others.shape)
        still = self._key[slot] < 0
        self._unplaced.append(np.stack([key, begin, cell, moved])[:, still])
        touched = later._key >= 0
        for name in ("_key", "_begin", "_end"):
            np.copyto(getattr(self, name), getattr(later, name), where=touched)

    def _steps(self, calls: Calls, order: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the step of each call in `order` (by thread, file and time), and whether it is `first` for lack of an entry."""
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
    """Fibonacci hashing (Knuth, volume 3, 6.4): the top bits of the product with 2**64 over the golden ratio."""
    product = key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    slot: NDArray[np.int64] = (product >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
    return slot


class Visits:
    """Collects the files that each occurrence reads, in order of the first read of each, and how many it writes."""

    def __init__(self, files: int) -> None:
        self._files = max(files, 1)
        self._first = np.empty(self._files, dtype=np.int64)  # scratch
        self._last = {READ: np.full(self._files, -1, dtype=np.int64), WRITE: np.full(self._files, -1, dtype=np.int64)}
        self._visited: list[NDArray[np.int64]] = []  # occurrence * files + file
        self._written: list[NDArray[np.int64]] = []

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch; `occurrence` has one entry a call."""
        self._visited.append(self._new(READ, 0, calls, occurrence))
        self._written.append(self._new(WRITE, 1, calls, occurrence))

    def extend(self, later: "Visits") -> None:
        """Add what `later` collected from the calls after these."""
        self._visited += later._visited
        self._written += later._written

    def _new(self, group: int, kind: int, calls: Calls, occurrence: NDArray[np.int64]) -> NDArray[np.int64]:
        used = (calls.group == group) & (calls.kind == kind) & (calls.moved_bytes > 0)
        file, occurrence = calls.file[used], occurrence[used]
        last = self._last[group]
        found = [np.empty(0, dtype=np.int64)]
        # Calls are in order of start, so an occurrence is a stretch of them, or a few where phases are nested.
        for begin, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(occurrence)) + 1), len(file)]):
            files, current = file[begin:end], occurrence[begin:end]
            index = np.arange(len(files))
            self._first[files[::-1]] = index[::-1]  # of several values for one index, NumPy keeps the last
            fresh = files[(self._first[files] == index) & (last[files] != current)]
            last[fresh] = current[:1]
            found.append(current[:1] * self._files + fresh)
        return np.concatenate(found)

    def of_each(self, occurrences: int) -> list[NDArray[np.int64]]:
        """Return for each occurrence the file_ids that it reads, in order of the first read of each."""
        visited = _once(self._visited)
        visited = visited[np.argsort(visited // self._files, kind="stable")]
        cuts = np.searchsorted(visited // self._files, np.arange(1, occurrences))
        return [part % self._files for part in np.split(visited, cuts)]

    def written_files(self, occurrences: int) -> NDArray[np.float64]:
        """Return how many files each occurrence writes."""
        return np.bincount(_once(self._written) // self._files, minlength=occurrences).astype(float)


class FileParts:
    """Collects the parts of large data-set files that each occurrence reads, in order of the first read of each."""

    def __init__(self, size_bytes: NDArray[np.int64]) -> None:
        """`size_bytes`: the size of each data-set file by file_id, 0 for other files."""
        large = np.flatnonzero(size_bytes >= _FEWEST_BYTES)
        self._large = large if np.count_nonzero(size_bytes) <= _MOST_FILES else large[:0]
        self._size_bytes = size_bytes
        self._visits = Visits(len(self._large) * PARTS)

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add one batch; `occurrence` has one entry a call."""
        used = np.flatnonzero(np.isin(calls.file, self._large) & (calls.offset >= 0))
        if not len(used):
            return
        own = calls.where(used)
        part = np.minimum(own.offset * PARTS // self._size_bytes[own.file], PARTS - 1)
        self._visits.add(replace(own, file=np.searchsorted(self._large, own.file) * PARTS + part), occurrence[used])

    def extend(self, later: "FileParts") -> None:
        """Add what `later` collected from the calls after these."""
        self._visits.extend(later._visits)

    def of_each(self, occurrences: int) -> list[NDArray[np.int64]]:
        """Return for each occurrence the parts that it reads, as file * PARTS + part, in order of the first read of each."""
        return self._visits.of_each(occurrences)


def _once(found: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    """Return each distinct entry once, in order of its first appearance."""
    together = np.concatenate([np.empty(0, dtype=np.int64), *found])
    return together[np.sort(np.unique(together, return_index=True)[1])]


@dataclass(frozen=True)
class Order:
    """Statistics of the order of files, one entry an occurrence: 0 in order, 1 random, NaN if there are too few files.

    `scatter`: mean distance, in the order of names, from a file to the next, over its expectation (n + 1) / 3 under a random
    order; a perfect order has distance 1, which both lose. `drift`: mean distance between the positions of a file in this
    occurrence and in the previous one of the phase, over its expectation (n**2 - 1) / 3n (Spearman's footrule; Diaconis and
    Graham 1977). `jumps`: mean scatter of the parts within large files. `*_variance`: the variance under a random order.
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
    """Return the order statistics of the files in `visits` (one array an occurrence), given the rank of each file by name.

    `visited_parts` has for each occurrence the parts of large files that it reads, as file * parts + part.
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
    # The distance of one random step has variance (n + 1)(n - 2) / 18; the n - 1 steps are taken as independent.
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
