"""The exact optimizer: dynamic programming over points (see costs.py), from the innermost level of machines to the outermost.

U[m][q] describes the stages from point q to the end of the graph if they have exactly m units: it is the least possible time, in
seconds, of the slowest of them. The pipeline's first stage has another formula and is added last. Inner levels need U for every
pair of points, so U is a matrix, and a step is a (min, max) product of matrices. The outermost level needs only pairs that end at
the last point.

If the times of several plans agree to 13 digits, the plan with the fewest stages is chosen, then the one with the fewest units,
the fewest bytes sent, and the earliest cuts.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.workloads.pipedream.plan.costs import Array, CostOptions, Costs, Points, sent_bytes

_SAME = 1 + 1e-13
_TILE = 512  # columns per block, so that a step's arrays stay in the processor's cache


@dataclass(frozen=True)
class Split:
    """A stage of one level, between the points `begin` and `end`, with `replicas` replicas, each on one unit of the level."""

    begin: int
    end: int
    replicas: int


@dataclass(frozen=True)
class Solution:
    """A plan: the time of its slowest stage in seconds per minibatch, and the stages of each level.

    The first level is the innermost, such as the workers within a machine. The next level divides the layers among machines.
    """

    seconds: float
    levels: tuple[tuple[Split, ...], ...]

    def stages(self) -> list[Split]:
        """Return the stages of the innermost level; their `replicas` count those in all units of the outer levels."""
        found = list(self.levels[0])
        for outer in self.levels[1:]:
            found = [
                Split(each.begin, each.end, each.replicas * group.replicas)
                for group in outer
                for each in found
                if group.begin <= each.begin and each.end <= group.end
            ]
        return found


class _Search:
    def __init__(self, points: Points, options: CostOptions, stages: Array | None = None) -> None:
        self.points, self.options, self.costs = points, options, Costs(options)
        # A matrix per level: entry [i, j] is the seconds in which one unit of the level computes a stage from point i to j.
        # None for the innermost level: its seconds are `points.busy_s`.
        self.inner: list[Array | None] = [stages]
        self._matrices: dict[tuple[int, int, bool], Array] = {}

    def compute(self, level: int, begin: int, ends: np.ndarray) -> Array:
        """Return the seconds in which one unit of `level` computes a stage from point `begin` to each of `ends`."""
        inner = self.inner[level]
        found: Array = self.points.busy_s(begin, ends) if inner is None else inner[begin, ends]
        return found

    def most(self, level: int) -> int:
        return 1 if self.options.straight else self.options.levels[level].machines

    def rows(self, level: int, begin: int, ends: np.ndarray, first: bool) -> Array:
        """Return the seconds of stages from `begin` to each of `ends`, of shape (replicas, ends). Row i has i + 1 replicas."""
        points = self.points
        replicas = np.arange(1, self.most(level) + 1)[:, None]
        compute = self.compute(level, begin, ends)
        parameters = points.parameters[ends] - points.parameters[begin]
        if first:
            return np.asarray(self.costs.first(level, compute, parameters, replicas))
        leaving = np.where(ends == points.last, 0, points.output[ends])
        return np.asarray(self.costs.later(level, compute, parameters, points.output[begin], leaving, replicas))

    def limited(self, times: Array, begin: int, ends: np.ndarray, replicas: int, units: np.ndarray) -> Array:
        """Return the `times` of stages to `ends`, of shape (units, ends). A time is infinite if memory is too small."""
        points = self.points
        if self.options.memory_bytes is None:
            return times[None, :]
        parameters = points.parameters[ends] - points.parameters[begin]
        activations = points.activations[ends] - points.activations[begin]
        return np.where(self.costs.too_large(parameters, activations, replicas, units[:, None]), np.inf, times)

    def matrix(self, level: int, replicas: int, units: int, first: bool) -> Array:
        """Return the seconds of a stage from point i to point j as a matrix; infinite if no such stage is possible."""
        if self.options.memory_bytes is not None:
            return self._matrix(level, replicas, units, first)
        if (level, replicas, first) not in self._matrices:  # without a memory limit, `units` does not matter
            self._matrices[level, replicas, first] = self._matrix(level, replicas, units, first)
        return self._matrices[level, replicas, first]

    def _matrix(self, level: int, replicas: int, units: int, first: bool) -> Array:
        points = self.points
        count = points.last + 1
        compute = self.inner[level]
        if compute is None:
            compute = points.busy_s(np.arange(count)[:, None], np.arange(count)[None, :])
        parameters = points.parameters[None, :] - points.parameters[:, None]
        if first:
            times = self.costs.first(level, compute, parameters, replicas)
        else:
            leaving = np.where(np.arange(count) == points.last, 0, points.output)[None, :]
            times = self.costs.later(level, compute, parameters, points.output[:, None], leaving, replicas)
        refused = ~points.reach
        if self.options.memory_bytes is not None:
            activations = points.activations[None, :] - points.activations[:, None]
            refused = refused | self.costs.too_large(parameters, activations, replicas, units)
        return np.where(refused, np.inf, times)

    def all_pairs(self, level: int) -> Array:
        """Return the best seconds for the layers between points i and j as a matrix, with all units of the level."""
        machines, exact = self.options.levels[level].machines, self.options.all_workers
        suffix: list[Array] = []  # element u - 1: best seconds on u units, without a first stage
        for units in range(1, machines):
            best = self._compose(level, units, suffix, False)
            if not exact and suffix:
                np.minimum(best, suffix[-1], out=best)
            suffix.append(best)
        best = self._compose(level, machines, suffix, True)
        for units in range(1, 1 if exact else min(machines - 1, self.most(level)) + 1):
            np.minimum(best, self.matrix(level, units, units, True), out=best)
        self._matrices.clear()
        return best

    def from_ends(self, level: int) -> Array:
        """Return the matrix of `all_pairs`, but only for pairs with the first or the last point; other entries are infinite.

        This suffices if the next level has at most two units. Memory must not be limited.
        """
        points, exact, last = self.points, self.options.all_workers, self.points.last
        best = np.full((last + 1, last + 1), np.inf)
        suffix = self._suffix(level, last)
        for begin in range(last):
            ends = np.flatnonzero(points.reach[begin])
            by_units = self._best(self.rows(level, begin, ends, True), begin, ends, suffix[:, ends])
            best[begin, last] = by_units[-1] if exact else by_units.min()
        prefix = self._prefix(level)
        best[0, 1:] = prefix[-1, 1:] if exact else prefix[:, 1:].min(axis=0)
        return best

    def _prefix(self, level: int) -> Array:
        """Return the best seconds from the first point to each point on exactly m units: shape (m, points)."""
        points, last = self.points, self.points.last
        found = np.full((self.options.levels[level].machines + 1, last + 1), np.inf)
        ends = np.arange(1, last + 1)
        first = self.rows(level, 0, ends, True)
        found[1 : len(first) + 1, 1:] = first
        replicas = np.arange(1, self.most(level) + 1)[:, None]
        inner = self.inner[level]
        for end in range(1, last + 1):
            begins = np.flatnonzero(points.reach[1:end, end]) + 1
            compute = points.busy_s(begins, end) if inner is None else inner[begins, end]
            parameters = points.parameters[end] - points.parameters[begins]
            leaving = 0.0 if end == last else points.output[end]
            times = self.costs.later(level, compute, parameters, points.output[begins], leaving, replicas)
            for m, row in enumerate(times, 1):
                before = np.maximum(found[:-m, begins], row).min(axis=1, initial=np.inf)
                found[m:, end] = np.minimum(found[m:, end], before)
        return found

    def _compose(self, level: int, units: int, suffix: list[Array], first: bool) -> Array:
        count = self.points.last + 1
        whole = units <= self.most(level)
        best = self.matrix(level, units, units, first).copy() if whole else np.full((count, count), np.inf)
        for replicas in range(1, min(units - 1, self.most(level)) + 1):
            _lower(best, self.matrix(level, replicas, units, first), suffix[units - replicas - 1])
        return best

    def outermost(self, level: int) -> Array:
        """Return the best seconds of the whole graph on exactly 0, 1, ... units of `level`, which must be the outermost."""
        last = self.points.last
        suffix = self._suffix(level, last)
        ends = np.arange(1, last + 1)
        return self._best(self.rows(level, 0, ends, True), 0, ends, suffix[:, ends])

    def _suffix(self, level: int, end: int) -> Array:
        """Return U (see the module) for the stages from each point to the point `end`: shape (units, points)."""
        suffix = np.full((self.options.levels[level].machines + 1, end + 1), np.inf)
        suffix[0, end] = 0
        for begin in range(end - 1, 0, -1):
            ends = begin + 1 + np.flatnonzero(self.points.reach[begin, begin + 1 : end + 1])
            suffix[:, begin] = self._best(self.rows(level, begin, ends, False), begin, ends, suffix[:, ends])
        return suffix

    def _best(self, rows: Array, begin: int, ends: np.ndarray, suffix: Array) -> Array:
        """Return the best seconds by number of units: one stage from `begin` to any of `ends`, then the stages in `suffix`."""
        best = np.full(len(suffix), np.inf)
        for replicas in range(1, len(rows) + 1):
            units = np.arange(replicas, len(suffix))
            times = self.limited(rows[replicas - 1], begin, ends, replicas, units)
            found = np.maximum(times, suffix[: len(units)]).min(axis=1, initial=np.inf)
            best[replicas:] = np.minimum(best[replicas:], found)
        return best


def _lower(best: Array, left: Array, right: Array) -> None:
    """Lower best[a, b] to max(left[a, q], right[q, b]) wherever that is less, for all points q between a and b."""
    count = len(best)
    scratch = np.empty((count, _TILE))
    for middle in range(1, count - 1):
        column = left[:middle, middle, None]
        for begin in range(middle + 1, count, _TILE):
            end = min(begin + _TILE, count)
            room = scratch[:middle, : end - begin]
            np.maximum(column, right[middle, None, begin:end], out=room)
            part = best[:middle, begin:end]
            np.minimum(part, room, out=part)


class _Choice:
    """Chooses among equally fast plans of a level between two points: first by fewest stages, then by fewest bytes sent."""

    def __init__(self, search: _Search, level: int, begin: int, end: int, seconds: float) -> None:
        self.search, self.level, self.begin, self.end = search, level, begin, end
        self.limit = seconds * _SAME
        points = search.points
        self.machines = search.options.levels[level].machines
        # A plan's key is `stage` per stage plus its bytes. `stage` exceeds all bytes of any plan, so stages decide first.
        self.stage = float(2 ** int(2 + np.log2(1 + 2 * self.machines * (points.output.max() + points.parameters[-1]))))
        self.keys = np.full((self.machines + 1, end + 1), np.inf)  # shape (units, points)
        self.keys[0, end] = 0
        for point in range(end - 1, begin, -1):
            if points.reach[begin, point] and points.reach[point, end]:
                self.keys[:, point] = self._best(point, False)

    def _ends(self, point: int) -> np.ndarray:
        inside = self.search.points.reach[point, : self.end + 1] & np.isfinite(self.keys.min(axis=0))
        return np.flatnonzero(inside)

    def _options(self, point: int, first: bool) -> Iterator[tuple[int, Array]]:
        """Yield (replicas, keys) for a stage from `point` and the stages after it. `keys` has the shape (units, end points)."""
        search, points = self.search, self.search.points
        ends = self._ends(point)
        after = self.keys[:, ends]
        rows = search.rows(self.level, point, ends, first)
        for replicas in range(1, len(rows) + 1):
            units = np.arange(replicas, self.machines + 1)
            times = search.limited(rows[replicas - 1], point, ends, replicas, units)
            sent = sent_bytes(points.parameters[ends] - points.parameters[point], replicas)
            own = self.stage + sent + (0 if first else 2 * points.output[point])
            yield replicas, np.where(times <= self.limit, own + after[: len(units)], np.inf)

    def _best(self, point: int, first: bool) -> Array:
        best = np.full(self.machines + 1, np.inf)
        for replicas, keys in self._options(point, first):
            best[replicas:] = np.minimum(best[replicas:], keys.min(axis=1))
        return best

    def _units(self) -> int:
        """Return the number of units to use: all, unless fewer are faster or the options require the fewest."""
        options, totals = self.search.options, self._best(self.begin, True)
        if options.all_workers or (np.isfinite(totals[-1]) and not options.fewest_workers):
            return self.machines
        return int(np.argmin(np.floor(totals / self.stage)))  # fewest stages, then fewest units

    def splits(self) -> tuple[Split, ...]:
        found: list[Split] = []
        point, units = self.begin, self._units()
        while point < self.end:
            ends = self._ends(point)
            options = {
                replicas: keys[units - replicas] for replicas, keys in self._options(point, not found) if replicas <= units
            }
            key = min(float(keys.min()) for keys in options.values())
            index, replicas = min((int(np.argmin(keys)), each) for each, keys in options.items() if keys.min() == key)
            found.append(Split(point, int(ends[index]), replicas))
            point, units = int(ends[index]), units - replicas
        return tuple(found)


def arrange(points: Points, options: CostOptions) -> Solution:
    """Return the fastest levels and replicas if the stages are given: there is a stage between any two neighbouring points.

    Raises IotwinError if there are too few workers or too little memory.
    """
    seconds = np.full((points.last + 1,) * 2, np.inf)
    begins = np.arange(points.last)
    seconds[begins, begins + 1] = points.busy_s(begins, begins + 1)
    return _solve(points, options, seconds)


def solve(points: Points, options: CostOptions) -> Solution:
    """Return the fastest plan. Raises IotwinError if no plan fits into the memory or uses exactly the required workers."""
    found = _solve(points, options, None)
    return _no_worse_than_one_stage(points, options, found) if not options.all_workers else found


def _solve(points: Points, options: CostOptions, stages: Array | None) -> Solution:
    search = _Search(points, options, stages)
    top = len(options.levels) - 1
    for level in range(top):
        ends_only = level == top - 1 and options.levels[top].machines <= 2 and options.memory_bytes is None
        search.inner.append(search.from_ends(level) if ends_only else search.all_pairs(level))
    by_units = search.outermost(top)
    seconds = float(by_units[-1] if options.all_workers else by_units.min())
    if not np.isfinite(seconds):
        raise IotwinError(_nothing_found(points, options))
    groups = _Choice(search, top, 0, points.last, seconds).splits()
    levels = [groups]
    for level in range(top - 1, -1, -1):
        groups = tuple(
            split
            for group in levels[0]
            for split in _Choice(
                search, level, group.begin, group.end, float(search.compute(level + 1, group.begin, np.array([group.end]))[0])
            ).splits()
        )
        levels.insert(0, groups)
    return Solution(seconds, tuple(levels))


def seconds_by_workers(points: Points, options: CostOptions) -> Array:
    """Return the fastest plan's seconds on at most 1, 2, ... workers of a single level; infinite if none fits into memory."""
    return np.minimum.accumulate(_Search(points, options).outermost(0)[1:])


def _no_worse_than_one_stage(points: Points, options: CostOptions, found: Solution) -> Solution:
    """Return data parallelism if it is faster than `found`, else `found`. It can be faster only if `options.straight` is set."""
    costs = Costs(options)
    seconds = costs.data_parallel(float(points.seconds[-1]), float(points.parameters[-1]))
    units = options.workers
    if seconds >= found.seconds or bool(costs.too_large(points.parameters[-1], points.activations[-1], units, units)):
        return found
    return Solution(seconds, tuple((Split(0, points.last, level.machines),) for level in options.levels))


def _nothing_found(points: Points, options: CostOptions) -> str:
    if options.memory_bytes is not None:
        return (
            f"no plan on {options.workers} workers fits {options.memory_bytes:.4g} bytes of memory each; "
            "give more workers or memory (-s), or smaller batches"
        )
    return (
        f"no plan of {points.last} states uses exactly {options.workers} workers; "
        "leave out --exact-workers, or ask for fewer workers (-n)"
    )


def plan_seconds(points: Points, options: CostOptions, levels: tuple[tuple[Split, ...], ...]) -> float:
    """Return the seconds of the slowest stage if `levels` holds the stages of each level, innermost first.

    Each stage must be within one stage of the next outer level.
    """
    costs = Costs(options)

    def seconds(level: int, begin: int, end: int) -> float:
        if level < 0:
            return float(points.busy_s(begin, end))
        inside = [split for split in levels[level] if begin <= split.begin and split.end <= end]
        worst = 0.0
        for split in inside:
            busy = seconds(level - 1, split.begin, split.end)
            parameters = points.parameters[split.end] - points.parameters[split.begin]
            if split.begin == begin:
                worst = max(worst, float(costs.first(level, busy, parameters, split.replicas)))
            else:
                leaving = 0 if split.end == points.last else points.output[split.end]
                entering = points.output[split.begin]
                worst = max(worst, float(costs.later(level, busy, parameters, entering, leaving, split.replicas)))
        return worst

    return seconds(len(levels) - 1, 0, points.last)
