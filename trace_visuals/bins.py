"""Spread calls over equal bins of time, exactly and without a Python loop over calls.

A lane is a set of calls, for instance "reads of storage". For each lane and bin are computed:

* the number of calls that start in the bin;
* the share of the bin with at least one call in flight, and the mean number of calls in flight;
* the bytes moved. Each call's bytes are spread evenly over its duration.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from iotwin.trace_visuals.call_columns import Bools, CallColumns, Ints

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Grid:
    """`count` equal bins of `width` each, which begin at `origin`.

    The axis has whole numbers: ns, or bytes of an address space.
    """

    origin: int
    width: int
    count: int

    @classmethod
    def covering(cls, begin: int, end: int, count: int) -> "Grid":
        """Return the grid of `count` bins that covers `begin` to `end`. The last bins may extend beyond `end`."""
        return cls(begin, max(1, -(-(end - begin) // count)), count)

    @property
    def end(self) -> int:
        """Position of the end of the last bin on the axis."""
        return self.origin + self.width * self.count

    def edges(self) -> Ints:
        """Return the `count` + 1 edges of the bins, in ascending order."""
        return self.origin + self.width * np.arange(self.count + 1, dtype=np.int64)


class Spread:
    """Sums quantities, such as bytes, per lane and bin of a grid. A quantity is spread evenly over intervals, such as calls."""

    def __init__(self, grid: Grid, lanes: int, quantities: int = 1) -> None:
        self._grid, self._lanes = grid, lanes
        self._parts = np.zeros((quantities, lanes * grid.count))
        # Changes of density at bin borders. Their running sum is the density in the bins that an interval covers completely.
        self._steps = np.zeros((quantities, lanes * (grid.count + 1)))

    def add(self, lane: Ints, start: Ints, end: Ints, *densities: Floats | float) -> None:
        """Add intervals with the density of each quantity, per unit of the axis. Parts outside the grid are ignored."""
        grid, span = self._grid, self._grid.width * self._grid.count
        start, end = _clipped(start - grid.origin, span), _clipped(end - grid.origin, span)
        rates = [np.broadcast_to(np.asarray(density, dtype=np.float64), start.shape) for density in densities]
        some = end > start
        if not some.all():
            indices = np.flatnonzero(some)
            lane, start, end, rates = lane[indices], start[indices], end[indices], [rate[indices] for rate in rates]
        first, last = start // grid.width, (end - 1) // grid.width
        row = lane * grid.count
        head = np.minimum(end, (first + 1) * grid.width) - start
        for parts, rate in zip(self._parts, rates, strict=True):
            np.add.at(parts, row + first, head * rate)
        more = np.flatnonzero(last > first)
        if len(more):
            self._add_long(lane[more], first[more], last[more], end[more], [rate[more] for rate in rates])

    def _add_long(self, lane: Ints, first: Ints, last: Ints, end: Ints, rates: list[Floats]) -> None:
        """Add the contributions of intervals that cross a bin border to all their bins except the first."""
        grid = self._grid
        tail, row = end - last * grid.width, lane * (grid.count + 1)
        for parts, steps, rate in zip(self._parts, self._steps, rates, strict=True):
            np.add.at(parts, lane * grid.count + last, tail * rate)
            np.add.at(steps, row + first + 1, rate)
            np.subtract.at(steps, row + last, rate)

    def later(self, other: "Spread") -> None:
        """Add the sums of `other`, which has the same grid."""
        self._parts += other._parts
        self._steps += other._steps

    def sums(self, quantity: int = 0) -> Floats:
        """Return the sums of the quantity with this index, shape (lanes, bins)."""
        grid = self._grid
        inside = np.cumsum(self._steps[quantity].reshape(self._lanes, grid.count + 1), axis=1)[:, :-1] * grid.width
        # Adding and subtracting the same densities may leave a rounding error below 0.
        sums: Floats = np.maximum(self._parts[quantity].reshape(self._lanes, grid.count) + inside, 0.0)
        return sums


def _clipped(values: Ints, most: int) -> Ints:
    inside = not len(values) or (values.min() >= 0 and values.max() <= most)
    return values if inside else np.clip(values, 0, most)


@dataclass(frozen=True)
class RequestIntervals:
    """Block requests, GPU kernels or copies, in order of start; every array has one entry for each."""

    start_ns: Ints
    end_ns: Ints
    size_bytes: Ints


@dataclass(frozen=True)
class CallLanes:
    """The calls of each lane, in bins of time; every array has the shape (lanes, bins)."""

    grid: Grid
    calls: Ints  # calls that start in the bin
    busy: Floats  # share of the bin with at least one call in flight, 0..1
    in_flight: Floats  # mean number of calls in flight
    size_bytes: Ints  # bytes moved


class LaneBins:
    """Sums up calls by lane (a row of the picture) and bin of time. `result` returns the sums.

    Each bin of a lane has the number of calls that start, their bytes, the share of the bin with a call in flight, and the mean
    number of calls in flight. Batches must be added in order of start.
    """

    def __init__(self, grid: Grid, lanes: int) -> None:
        self.grid, self.lanes = grid, lanes
        self._calls = np.zeros(lanes * grid.count, dtype=np.int64)
        # the two quantities of `_load`: calls in flight, bytes
        self._union, self._load = Spread(grid, lanes), Spread(grid, lanes, 2)
        self._instant = np.zeros(lanes * grid.count)
        self._covered_to = np.full(lanes, np.iinfo(np.int64).min)

    def add(self, calls: CallColumns | RequestIntervals, lane: Ints) -> None:
        """Add a batch; `lane` has one entry per call, negative for calls that belong to no lane."""
        start, end, size = calls.start_ns, calls.end_ns, calls.size_bytes
        wanted = (lane >= 0) & (end >= self.grid.origin) & (start < self.grid.end)
        if not wanted.all():
            chosen = np.flatnonzero(wanted)
            lane, start, end, size = lane[chosen], start[chosen], end[chosen], size[chosen]
        inside = start >= self.grid.origin
        cell = lane * self.grid.count + np.maximum(start - self.grid.origin, 0) // self.grid.width
        self._calls += np.bincount(cell if inside.all() else cell[inside], minlength=len(self._calls))
        duration = end - start
        self._load.add(lane, start, end, 1.0, size / np.maximum(duration, 1))
        at_once = np.flatnonzero(inside & (duration == 0))
        np.add.at(self._instant, cell[at_once], size[at_once])
        self._add_union(lane, start, end)

    def begin_with(self, calls: CallColumns, lane: Ints) -> None:
        """Do not count the time of `calls` as busy again. They began in an earlier stretch of the trace, which counts their time.

        `lane`: lane of each call, negative for none.
        """
        chosen = lane >= 0
        np.maximum.at(self._covered_to, lane[chosen], calls.end_ns[chosen])

    def later(self, other: "LaneBins") -> None:
        """Add the bins of `other`, which holds the calls that follow in the trace."""
        self._calls += other._calls
        self._union.later(other._union)
        self._load.later(other._load)
        self._instant += other._instant

    def _add_union(self, lane: Ints, start: Ints, end: Ints) -> None:
        fresh = start.copy()
        for number in np.flatnonzero(np.bincount(lane, minlength=self.lanes)):
            of_lane = np.flatnonzero(lane == number)
            reach = np.maximum.accumulate(np.concatenate(([self._covered_to[number]], end[of_lane])))
            fresh[of_lane] = np.maximum(start[of_lane], reach[:-1])
            self._covered_to[number] = reach[-1]
        self._union.add(lane, fresh, end, 1.0)

    def result(self) -> CallLanes:
        """Return the bins. Bytes are rounded to whole numbers, and their sum is the bytes of the calls inside the grid."""
        shape = (self.lanes, self.grid.count)
        size = self._load.sums(1) + self._instant.reshape(shape)
        running = np.rint(np.cumsum(size, axis=1)).astype(np.int64)
        whole = running.copy()
        whole[:, 1:] -= running[:, :-1]
        width = self.grid.width
        busy = np.minimum(self._union.sums() / width, 1.0)
        return CallLanes(self.grid, self._calls.reshape(shape), busy, self._load.sums() / width, whole)


def occupied(lanes: CallLanes) -> Bools:
    """Return the bins in which a call starts or is in flight, as booleans of shape (lanes, bins)."""
    return (lanes.calls > 0) | (lanes.in_flight > 0)
