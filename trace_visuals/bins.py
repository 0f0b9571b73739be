"""Calls spread over equal bins of time, exactly and without Python per call.

Each lane (for instance "reads of storage") gets, per bin: the calls that start there, the share of the bin with at least one call
in flight, the mean number of calls in flight, and the bytes moved, each call's bytes spread evenly over its duration.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from trace_visuals.calls import Bools, Calls, Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """`count` bins of `width` from `origin` on, along an axis of whole numbers: nanoseconds, or bytes of an address space."""

    origin: int
    width: int
    count: int

    @classmethod
    def covering(cls, begin: int, end: int, count: int) -> "Grid":
        """Return the grid of `count` bins that covers begin..end; the last bins may reach past the end."""
        return cls(begin, max(1, -(-(end - begin) // count)), count)

    @property
    def end(self) -> int:
        """End of the last bin."""
        return self.origin + self.width * self.count

    def edges(self) -> Ints:
        """Return the `count` + 1 edges."""
        return self.origin + self.width * np.arange(self.count + 1, dtype=np.int64)


class Spread:
    """Sums, per lane and bin, of something that is evenly spread over intervals of the grid's axis."""

    def __init__(self, grid: Grid, lanes: int) -> None:
        self._grid, self._lanes = grid, lanes
        self._parts = np.zeros(lanes * grid.count)
        # Density changes at bin borders: their running sum is what the bins wholly inside an interval get.
        self._steps = np.zeros(lanes * (grid.count + 1))

    def add(self, lane: Ints, start: Ints, end: Ints, density: Floats | float) -> None:
        """Add intervals with `density` per unit of the axis; what lies outside the grid is left out."""
        grid = self._grid
        start = np.clip(start - grid.origin, 0, grid.width * grid.count)
        end = np.clip(end - grid.origin, 0, grid.width * grid.count)
        some = np.flatnonzero(end > start)
        rate = np.broadcast_to(np.asarray(density, dtype=np.float64), start.shape)[some]
        lane, start, end = lane[some], start[some], end[some]
        first, last = start // grid.width, (end - 1) // grid.width
        row = lane * grid.count
        head = np.minimum(end, (first + 1) * grid.width) - start
        np.add.at(self._parts, row + first, head * rate)
        more = np.flatnonzero(last > first)
        if len(more):
            lane, first, last, rate = lane[more], first[more], last[more], rate[more]
            np.add.at(self._parts, row[more] + last, (end[more] - last * grid.width) * rate)
            row = lane * (grid.count + 1)
            np.add.at(self._steps, row + first + 1, rate)
            np.subtract.at(self._steps, row + last, rate)

    def sums(self) -> Floats:
        """Return the sums, shape (lanes, bins)."""
        grid = self._grid
        inside = np.cumsum(self._steps.reshape(self._lanes, grid.count + 1), axis=1)[:, :-1] * grid.width
        # Adding and taking away the same rates may leave a rounding residue where nothing is in flight.
        return np.maximum(self._parts.reshape(self._lanes, grid.count) + inside, 0.0)


@dataclass(frozen=True)
class Lanes:
    """What a LaneBins found; every array has the shape (lanes, bins)."""

    grid: Grid
    calls: Ints  # calls that start in the bin
    busy: Floats  # share of the bin with at least one call in flight, 0..1
    in_flight: Floats  # mean number of calls in flight
    size_bytes: Ints  # bytes moved


class LaneBins:
    """Accumulates calls, batch after batch in order of start, into lanes of bins."""

    def __init__(self, grid: Grid, lanes: int) -> None:
        self.grid, self.lanes = grid, lanes
        self._calls = np.zeros(lanes * grid.count, dtype=np.int64)
        self._union, self._flight, self._bytes = (Spread(grid, lanes) for _ in range(3))
        self._instant = np.zeros(lanes * grid.count)
        self._covered_to = np.full(lanes, np.iinfo(np.int64).min)

    def add(self, calls: Calls, lane: Ints) -> None:
        """Add a batch; `lane` has one entry per call, negative for calls that belong to no lane."""
        chosen = np.flatnonzero((lane >= 0) & (calls.end_ns >= self.grid.origin) & (calls.start_ns < self.grid.end))
        lane, start, end, size = lane[chosen], calls.start_ns[chosen], calls.end_ns[chosen], calls.size_bytes[chosen]
        inside = start >= self.grid.origin
        cell = lane * self.grid.count + np.maximum(start - self.grid.origin, 0) // self.grid.width
        self._calls += np.bincount(cell[inside], minlength=len(self._calls))
        duration = end - start
        self._flight.add(lane, start, end, 1.0)
        self._bytes.add(lane, start, end, size / np.maximum(duration, 1))
        at_once = inside & (duration == 0)
        np.add.at(self._instant, cell[at_once], size[at_once])
        self._add_union(lane, start, end)

    def _add_union(self, lane: Ints, start: Ints, end: Ints) -> None:
        fresh = start.copy()
        for number in np.unique(lane):
            of_lane = np.flatnonzero(lane == number)
            reach = np.maximum.accumulate(np.concatenate(([self._covered_to[number]], end[of_lane])))
            fresh[of_lane] = np.maximum(start[of_lane], reach[:-1])
            self._covered_to[number] = reach[-1]
        self._union.add(lane, fresh, end, 1.0)

    def result(self) -> Lanes:
        """Return the bins; bytes are whole and sum to the bytes of the calls inside the grid."""
        shape = (self.lanes, self.grid.count)
        size = self._bytes.sums() + self._instant.reshape(shape)
        running = np.rint(np.cumsum(size, axis=1)).astype(np.int64)
        whole = running.copy()
        whole[:, 1:] -= running[:, :-1]
        width = self.grid.width
        busy = np.minimum(self._union.sums() / width, 1.0)
        return Lanes(self.grid, self._calls.reshape(shape), busy, self._flight.sums() / width, whole)


def occupied(lanes: Lanes) -> Bools:
    """Return which bins see a call at all, shape (lanes, bins): one starts there or one is in flight."""
    return (lanes.calls > 0) | (lanes.in_flight > 0)
