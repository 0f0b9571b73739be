"""Store the paths that programs passed to calls (failed opens, stat, unlink, rename) compactly, and find them by call."""

from array import array

import numpy as np
from numpy.typing import NDArray


class CallPaths:
    """Paths that were passed to calls, by thread and start of the call. Add all paths before the first `find`."""

    def __init__(self) -> None:
        self.paths: list[bytes] = []  # each path once
        self._index_of: dict[bytes, int] = {}
        self._columns = (array("q"), array("i"), array("i"))  # time_ns, tid, index of the path
        self._sorted: tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]] | None = None

    def add(self, time_ns: int, tid: int, path: bytes) -> None:
        """Add the path of the call that thread `tid` began at `time_ns`. For a rename, add the old path, then the new one."""
        index = self._index_of.setdefault(path, len(self.paths))
        if index == len(self.paths):
            self.paths.append(path)
        for column, value in zip(self._columns, (time_ns, tid, index), strict=True):
            column.append(value)

    def find(self, start_ns: NDArray[np.int64], tid: NDArray[np.uint32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return, for n calls, the indices in `paths` of their first and second paths, -1 for none; both have shape (n,)."""
        times, tids, indices = self._in_order()
        if not len(times):
            return np.full(len(start_ns), -1), np.full(len(start_ns), -1)
        at = np.searchsorted(times, start_ns)
        while True:  # until no other thread's call that began in the same nanosecond is left to skip
            same_time = (at < len(times)) & (times[np.minimum(at, len(times) - 1)] == start_ns)
            at = np.minimum(at, len(times) - 1)
            other = same_time & (tids[at] != tid)
            if not other.any():
                break
            at = at + other
        after = np.minimum(at + 1, len(times) - 1)
        has_second = same_time & (after > at) & (times[after] == start_ns) & (tids[after] == tid)
        return np.where(same_time, indices[at], -1), np.where(has_second, indices[after], -1)

    def _in_order(self) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.int32]]:
        if self._sorted is None:
            times, tids, indices = (np.array(column) for column in self._columns)
            order = np.lexsort((tids, times))  # stable, so that a rename's new path follows its old path
            self._sorted = times[order], tids[order], indices[order]
            self._columns = (array("q"), array("i"), array("i"))
        return self._sorted
