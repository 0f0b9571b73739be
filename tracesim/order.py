"""The order in which a job reads its files, and the bytes of each file."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.calls import OPEN, READ, WRITE, Calls, stable_order
from iotwin.tracesim.logbins import table

_Ids = NDArray[np.int32]  # of files
_KIND_OF = {READ: 0, WRITE: 1}  # reads visit data-set files, writes visit checkpoint files

STEPS = ("first", "sequential", "forward", "backward", "again")
_FIRST, _SEQUENTIAL, _FORWARD, _BACKWARD, _AGAIN = range(len(STEPS))
_SLOT_BITS = 20
_TABLE = ("_key", "_begin", "_end")  # columns of the hash table of OffsetSteps
_FEWEST_FILES = 8  # least number of files whose order is measured: a shuffle of fewer files is often nearly sorted by chance
PARTS = 64  # a large file is divided into this many equal parts, so that the order of reading its bytes can be measured
_MOST_FILES = 32  # if the data set has more files, no file is divided, since the order of files suffices
_FEWEST_BYTES = 1 << 22  # least bytes of a file that is divided, so that a part has at least 64 KiB, a usual request size


class OffsetSteps:
    """Classifies each read and write by its offset, compared with the previous call of its thread on its file (STEPS).

    A call is `first` if it is the first after an open, and `sequential` if it begins where the previous call ended. It is `again`
    if it begins where the previous call began, otherwise `forward` or `backward`. Calls and bytes are summed per phase
    occurrence.
    """

    def __init__(self, occurrences: int, files: int) -> None:
        self._n, self._files = occurrences, max(files, 1)
        self.calls = np.zeros((occurrences, 2 * len(STEPS)))  # shape (occurrences, 2 * STEPS): reads, then writes
        self.bytes = np.zeros((occurrences, 2 * len(STEPS)))
        # A hash table of fixed size: the last call of each (thread, file). If another pair has overwritten a pair's entry, the
        # pair's next call counts as `first`. This does not depend on how the trace is divided into batches and stretches.
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
        key = calls.thread[used] * self._files + calls.file[used]
        slot = _slot(key)
        in_slots = stable_order(slot)
        order = used[in_slots]
        step, unplaced = self._steps(calls, order, key[in_slots], slot[in_slots])
        moving = calls.group[order] != OPEN
        rows = order[moving]
        cell = calls.group[rows] * len(STEPS) + step[moving]
        new = np.flatnonzero(unplaced[moving])
        key = key[in_slots][moving][new]
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

    def _steps(
        self, calls: Calls, order: NDArray[np.int64], key: NDArray[np.int64], slot: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return each call's index into STEPS, and a mask of the calls whose entry in the hash table is empty (counted as
        `first`).

        `order` sorts the calls by `slot`, the index of their entry, and time. `key` identifies their thread and file.
        """
        opening = calls.group[order] == OPEN
        begin = np.where(opening, -1, calls.offset[order])
        end = np.where(opening, -1, begin + calls.moved_bytes[order])
        is_first = np.concatenate(([True], slot[1:] != slot[:-1]))
        slots, is_last = slot[is_first], np.concatenate((is_first[1:], [True]))
        unplaced = is_first.copy()
        unplaced[is_first] = self._key[slots] < 0
        before = []
        for own, values in ((self._key, key), (self._begin, begin), (self._end, end)):
            before.append(np.roll(values, 1))
            before[-1][is_first] = own[slots]
            own[slots] = values[is_last]
        known = before[0] == key
        return _step(begin, np.where(known, before[1], -1), np.where(known, before[2], -1)), unplaced


def _step(begin: NDArray[np.int64], before_begin: NDArray[np.int64], before_end: NDArray[np.int64]) -> NDArray[np.int64]:
    conditions = [before_end < 0, begin == before_end, begin == before_begin, begin > before_end]
    return np.select(conditions, [_FIRST, _SEQUENTIAL, _AGAIN, _FORWARD], default=_BACKWARD)


def _slot(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the hash table's index for each key by Fibonacci hashing (Knuth, volume 3, 6.4)."""
    product = key.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    slot: NDArray[np.int64] = (product >> np.uint64(64 - _SLOT_BITS)).astype(np.int64)
    return slot


class Visits:
    """Collects, per phase occurrence, the data-set files that it reads, in order of first read, and its checkpoint files."""

    def __init__(self, files: int) -> None:
        self._files = max(files, 1)
        self._first = np.empty(self._files, dtype=np.int32)  # scratch
        self._last = {group: np.full(self._files, -1, dtype=np.int32) for group in _KIND_OF}
        self._current = dict.fromkeys(_KIND_OF, -1)
        self._found: dict[int, dict[int, list[_Ids]]] = {group: {} for group in _KIND_OF}  # by occurrence, each file once

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        for group, kind in _KIND_OF.items():
            used = (calls.group == group) & (calls.kind == kind) & (calls.moved_bytes > 0)
            self._add(group, calls.file[used].astype(np.int32), occurrence[used])

    def later(self, other: "Visits") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        for group, found in other._found.items():
            for occurrence, files in found.items():
                own = self._found[group].setdefault(occurrence, [])
                if own:
                    is_known = np.zeros(self._files, np.bool_)
                    is_known[np.concatenate(own)] = True
                    files = [each[~is_known[each]] for each in files]
                own += files

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what only `add` needs: after another process received this object, it only combines it with others."""
        found = {group: {number: [np.concatenate(own)] for number, own in of.items()} for group, of in self._found.items()}
        return {"_files": self._files, "_found": found}

    def _add(self, group: int, file: _Ids, occurrence: NDArray[np.int64]) -> None:
        last = self._last[group]
        # Calls are in order of start, so those of one occurrence are consecutive, or in a few groups if phases are nested.
        for begin, end in itertools.pairwise([0, *(np.flatnonzero(np.diff(occurrence)) + 1), len(file)]):
            if begin == end:
                continue
            files, current = file[begin:end], int(occurrence[begin])
            found = self._found[group].setdefault(current, [])
            if current != self._current[group]:
                self._current[group] = current
                for known in found:  # the occurrence continues after a nested one
                    last[known] = current
            index = np.arange(len(files), dtype=np.int32)
            self._first[files[::-1]] = index[::-1]  # of several values for one index, NumPy keeps the last
            fresh = files[(self._first[files] == index) & (last[files] != current)]
            last[fresh] = current
            found.append(fresh)

    def of_each(self, occurrences: int) -> list[_Ids]:
        """Return, for each phase occurrence, the file_ids that it reads, in order of first read."""
        found = self._found[READ]
        return [np.concatenate([np.empty(0, np.int32), *found.get(occurrence, ())]) for occurrence in range(occurrences)]

    def written_files(self, occurrences: int) -> NDArray[np.float64]:
        """Return the number of files that each phase occurrence writes, shape (occurrences,)."""
        found = self._found[WRITE]
        return np.array([sum(map(len, found.get(occurrence, ()))) for occurrence in range(occurrences)], np.float64)


class FileParts:
    """Collects which parts of large data-set files each phase occurrence reads, in order of first read."""

    def __init__(self, size_bytes: NDArray[np.int64]) -> None:
        """Choose the files to divide. `size_bytes[file_id]` is the size of a data-set file, and 0 for other files."""
        large = np.flatnonzero(size_bytes >= _FEWEST_BYTES)
        self._large = large if np.count_nonzero(size_bytes) <= _MOST_FILES else large[:0]
        self._size_bytes = size_bytes[self._large]
        self._visits = Visits(len(self._large) * PARTS)

    def add(self, calls: Calls, occurrence: NDArray[np.int64]) -> None:
        """Add a batch of calls. `occurrence` has the index of each call's phase occurrence."""
        used = np.flatnonzero(np.isin(calls.file, self._large) & (calls.offset >= 0))
        if not len(used):
            return
        own = calls.where(used)
        index = np.searchsorted(self._large, own.file)
        part = np.minimum(own.offset * PARTS // self._size_bytes[index], PARTS - 1)
        self._visits.add(replace(own, file=index * PARTS + part), occurrence[used])

    def later(self, other: "FileParts") -> None:
        """Add the values of `other`, which collected the calls that follow in the trace."""
        self._visits.later(other._visits)

    def of_each(self, occurrences: int) -> list[_Ids]:
        """Return, for each phase occurrence, the parts that it reads as file * PARTS + part, in order of first read."""
        return self._visits.of_each(occurrences)


@dataclass(frozen=True)
class Order:
    """Statistics of the order in which each phase occurrence reads files: 0 is sorted, 1 is random, NaN if there are too few
    files.

    * `scatter`: how far apart successively read files are in the sorted list of names. Computed as the mean distance minus 1 (the
      distance in sorted order), divided by the expectation for a random order, (n + 1) / 3 - 1.
    * `drift`: how far a file's position moves from the phase's previous occurrence to this one. Computed as the mean distance
      divided by the expectation for a random order, (n**2 - 1) / 3n (Spearman's footrule; Diaconis and Graham 1977).
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
    visits: Sequence[_Ids],
    phase: NDArray[np.int64],
    name_rank: NDArray[np.int64] | NDArray[np.int32],
    visited_parts: Sequence[_Ids] = (),
    parts: int = 1,
) -> Order:
    """Return the statistics of file order for each phase occurrence.

    `visits`: the file_ids that each occurrence reads, in order of first read. `phase`: the phase of each occurrence. `name_rank`:
    each file's rank in order of name. `visited_parts`: the parts of large files that each occurrence reads, as file * parts +
    part.
    """
    result = np.full((6, len(visits)), np.nan)
    for index, visited in enumerate(visited_parts):
        each = [visited[visited // parts == file] % parts for file in np.unique(visited // parts)]
        found = [_scatter(own) for own in each if len(own) >= _FEWEST_FILES]
        if found:
            result[4:, index] = np.mean(found, axis=0) / (1, len(found))
    before: dict[int, _Ids] = {}
    for index, files in enumerate(visits):
        if len(files) >= _FEWEST_FILES:
            result[:2, index] = _scatter(name_rank[files])
            if phase[index] in before:
                result[2:4, index] = _drift(files, before[phase[index]])
            before[phase[index]] = files
    return Order(*result)


def _scatter(rank: NDArray[np.int64] | NDArray[np.int32]) -> tuple[float, float]:
    n = len(rank)
    position = np.empty(n)
    position[np.argsort(rank)] = np.arange(n)
    scale = (n + 1) / 3 - 1
    # One random distance has the variance (n + 1)(n - 2) / 18. The n - 1 distances are treated as independent.
    variance = (n + 1) * (n - 2) / 18 / (n - 1) / scale**2
    return min((float(np.abs(np.diff(position)).mean()) - 1) / scale, 1.0), variance


def _drift(files: _Ids, before: _Ids) -> tuple[float, float]:
    common, here, there = np.intersect1d(files, before, assume_unique=True, return_indices=True)
    n = len(common)
    if n < _FEWEST_FILES:
        return np.nan, np.nan
    moved = np.abs(np.argsort(np.argsort(here)) - np.argsort(np.argsort(there)))
    expected = (n * n - 1) / 3
    return min(float(moved.sum()) / expected, 1.0), (n + 1) * (2 * n * n + 7) / 45 / expected**2
