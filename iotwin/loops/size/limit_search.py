"""Search the least storage that keeps a target: bisection on a logarithmic scale, in which every point is measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import NamedTuple

from iotwin.common.errors import UsageError

_RESOLUTION = 1.05  # ratio of the last two limits
_WIDER = 4.0  # ratio of two limits before the target lies between them
_MOST_WIDER = 5  # steps in each direction before the search ends without a bracket
_NEAR = 0.03  # a figure this near to the target, relative to it, is measured again


@dataclass(frozen=True)
class SizeTarget:
    """The figure that storage must keep: `au` at least `value`, or `epoch_time` at most `value` times the unlimited epoch."""

    figure: str
    value: float

    def holds(self, measured: float) -> bool:
        """Return whether a measured AU or ratio of epoch times keeps the target."""
        return measured >= self.value if self.figure == "au" else measured <= self.value

    def longest(self, unlimited_au: float | None) -> float:
        """Return the longest time of a run that keeps the target, divided by the time of the run without limits."""
        return (unlimited_au or 1.0) / self.value if self.figure == "au" else self.value

    def is_near(self, measured: float) -> bool:
        """Return whether a measured figure is so near to the target that one run does not decide."""
        return abs(measured - self.value) <= _NEAR * self.value

    def __str__(self) -> str:
        return f"{self.figure}={self.value:g}"


def parse_target(text: str) -> SizeTarget:
    """Return the target that `text` specifies, such as au=0.9 or epoch_time=1.05. Raises UsageError for other text."""
    figure, _, value = text.partition("=")
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if (figure == "au" and 0 < number < 1) or (figure == "epoch_time" and 1 < number < math.inf):
        return SizeTarget(figure, number)
    raise UsageError(f"--target '{text}' is no target; write for example au=0.9 (below 1) or epoch_time=1.05 (above 1)")


class MeasuredRun(NamedTuple):
    """The target's figure in one run, and its AU (None if unknown)."""

    figure: float
    au: float | None


@dataclass
class MeasuredPoint:
    """A limit and the runs under it."""

    limit: float
    runs: list[MeasuredRun] = field(default_factory=list)

    @property
    def figures(self) -> list[float]:
        """The target's figure of each run."""
        return [run.figure for run in self.runs]

    @property
    def au(self) -> float | None:
        """The median AU of the runs, None if it is unknown."""
        known = [run.au for run in self.runs if run.au is not None]
        return median(known) if known else None

    @property
    def figure(self) -> float:
        """The median of the target's figure."""
        return median(self.figures)


def measure_near(measure: Callable[[], MeasuredRun], target: SizeTarget, runs: int) -> list[MeasuredRun]:
    """Return the runs of `measure`: one, or up to `runs` while their median is near the target."""
    found = [measure()]
    while len(found) < runs and target.is_near(median(run.figure for run in found)):
        found.append(measure())
    return found


@dataclass(frozen=True)
class FoundLimit:
    """The tightest limit that kept the target. `low` and `high` enclose the edge, with the noise of repeated runs.

    `edge`: "found"; "not reached" if even the tightest limit tried kept the target; "too slow" if no limit tried kept it, and
    `point` is None.
    """

    point: MeasuredPoint | None
    low: float
    high: float
    edge: str
    points: list[MeasuredPoint]


def tightest(
    measure: Callable[[float], MeasuredRun], target: SizeTarget, loose: float, tight: float, runs: int, floor: float = 0.0
) -> FoundLimit:
    """Return the tightest limit at which `measure(limit)` keeps `target`, to 5 %.

    `loose` and `tight` are the first limits tried. `loose` is above `tight` if more is faster (bandwidth), and below if more is
    slower (latency). Limits below `floor` are not tried. Points near the target are measured `runs` times.
    """
    points: list[MeasuredPoint] = []

    def keeps(limit: float) -> bool:
        points.append(point := MeasuredPoint(limit, measure_near(partial(measure, limit), target, runs)))
        return target.holds(point.figure)

    wider = _WIDER if loose > tight else 1 / _WIDER
    good, bad = _bracket(keeps, loose, max(tight, floor), wider, floor)
    if good is None:
        return FoundLimit(None, min(p.limit for p in points), max(p.limit for p in points), "too slow", _sorted(points))
    while bad is not None and max(good, bad) / min(good, bad) > _RESOLUTION:
        middle = math.sqrt(good * bad)
        good, bad = (middle, bad) if keeps(middle) else (good, middle)
    found = next(point for point in points if point.limit == good)
    if bad is None:
        return FoundLimit(found, good, good, "not reached", _sorted(points))
    low, high = _noisy_edge(points, target, min(good, bad), max(good, bad))
    return FoundLimit(found, low, high, "found", _sorted(points))


def _bracket(
    keeps: Callable[[float], bool], loose: float, tight: float, wider: float, floor: float
) -> tuple[float | None, float | None]:
    """Return a limit that keeps the target and a tighter one that does not; None for one that was not found."""
    bad: float | None = None
    for _ in range(_MOST_WIDER):
        if keeps(loose):
            break
        bad, loose = loose, loose * wider
    else:
        return None, bad
    good = loose
    for _ in range(_MOST_WIDER if bad is None else 0):
        if not keeps(tight):
            return good, tight
        if tight <= floor:
            return tight, None
        good, tight = tight, max(tight / wider, floor)
    return good, bad


def _noisy_edge(points: list[MeasuredPoint], target: SizeTarget, low: float, high: float) -> tuple[float, float]:
    """Return the bracket, widened to all points whose runs disagree on the target."""
    mixed = [point.limit for point in points if len({target.holds(figure) for figure in point.figures}) > 1]
    return min([low, *mixed]), max([high, *mixed])


def _sorted(points: list[MeasuredPoint]) -> list[MeasuredPoint]:
    return sorted(points, key=lambda point: point.limit)
