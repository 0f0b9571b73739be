"""The cadence of evaluations and checkpoints, from the epochs, steps or seconds after which they were seen."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iotwin.workloads.policies.cadence import Cadence

_NONE = -1  # Cadence.also
_LATE = 0.15  # what is written while training goes on may seem late by this share of the steps between two
_FEWEST = 4  # so many distances distinguish a clock from a count
_BY_TIME = 0.5  # a clock decides if the seconds between vary less than this share of what the steps do; both over their means
_LATE_STEPS = 1  # where a count decides, the steps between may vary by this: one was late
_MANY_MISSED = 0.05  # a cadence that comes so much more or less often than was seen, as a share, is none
_ROW = 3  # so many at equal distances are no chance


def find_cadence(seen: Sequence[int], until: int, exact: bool, one_more: bool = True) -> Cadence:
    """Return the cadence that gives as many as were `seen` up to the end, `until`, and nearest to these.

    Numbers count from 1 and ascend; not `exact`: they may be a little late. `one_more`: the first or the last of them may be
    outside the row. Of cadences as near, the simplest: in phase with the count rather than not, and with none outside. With none
    `seen`, the first comes after the end.
    """
    if not seen:
        return Cadence(until + 1, until + 1)
    return min(_candidates(seen, until, one_more), key=lambda cadence: _distance(cadence, seen, until, exact))


def explains(cadence: Cadence, seen: Sequence[int], until: int, exact: bool) -> bool:
    """Whether `cadence` comes when, and about as often as, those of `seen` did; arguments as of `find_cadence`."""
    missed, apart, *_ = _distance(cadence, seen, until, exact)
    return missed <= max(1, _MANY_MISSED * len(seen)) and apart == 0


def steady(seen: Sequence[int]) -> int | None:
    """Return the steps between those that were `seen`, where all came when one number has them due, or a little late."""
    if len(seen) < _ROW:
        return None
    numbers = np.arange(1, len(seen) + 1)
    every = int((np.array(seen) // numbers).min())  # none comes early
    return every if (np.array(seen) - numbers * every <= _LATE * every).all() else None


def find_intervals(seen: Sequence[int], in_epoch: int) -> list[tuple[int, int]]:
    """Return (step, interval): from which step on how many lay between two, in order; it may change now and then.

    Those at ends of epochs, of `in_epoch` steps, may be others', or of the row: what leaves fewer intervals is taken to be so.
    """
    within = [step for step in seen if step % in_epoch]
    return min((_runs(steps) for steps in (seen, within) if steps), key=len, default=[])


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first step, interval) of each run of equal intervals. A single other one is a late checkpoint, two are a run."""
    pairs = [(before, after - before) for before, after in pairwise([0, *steps]) if after > before]
    runs: list[tuple[int, list[int]]] = []
    for number, (step, distance) in enumerate(pairs):
        following = pairs[number + 1][1] if number + 1 < len(pairs) else distance
        usual = float(np.median(runs[-1][1])) if runs else None
        if usual is not None and min(abs(distance - usual), abs(following - usual)) <= _LATE_STEPS:
            runs[-1][1].append(distance)
        else:
            runs.append((step, [distance]))
    return [(step, round(float(np.median(distances)))) for step, distances in runs]


def find_seconds(steps: Sequence[int], begun_ns: NDArray[np.int64]) -> float | None:
    """Return the seconds after which another is due, where a clock decides and not a count of steps; else None.

    `steps` were done when each began, at `begun_ns`; both ascend. One is written after the first step that ends when it is due,
    so half a step later than that in the mean.
    """
    counts, seconds = np.diff(steps), np.diff(begun_ns) / 1e9
    if len(counts) < _FEWEST or np.ptp(counts) <= _LATE_STEPS:
        return None
    if np.std(seconds) / np.mean(seconds) > _BY_TIME * np.std(counts) / np.mean(counts):
        return None
    step_s = seconds.sum() / counts.sum()
    return round(float(np.median(seconds) - step_s / 2), 3)


def _candidates(seen: Sequence[int], until: int, one_more: bool) -> Iterator[Cadence]:
    for also in (_NONE, seen[0], seen[-1]) if one_more and len(seen) > 1 else (_NONE,):
        row = seen if also == _NONE else seen[1:] if also == seen[0] else seen[:-1]
        distances = np.diff(row)
        typical = {int(distances.max()), *np.round(np.quantile(distances, (0.25, 0.5, 0.75))).astype(int)} if len(row) > 1 else ()
        for every in sorted({row[0], *typical, *((until,) if len(row) == 1 else ())} - {0}):
            for first in (every, row[0]):
                yield Cadence(int(first), int(every), also)


def _distance(cadence: Cadence, seen: Sequence[int], until: int, exact: bool) -> tuple[float, ...]:
    last = max(until, seen[-1])
    due = {*range(cadence.first, last + 1, cadence.every)} | ({cadence.also} - {_NONE})
    apart = np.abs(np.subtract.outer(np.array(seen), np.array(sorted(due) or [0]))).min(axis=1).mean()
    regular = apart == 0 and len(due) - (cadence.also != _NONE) >= _ROW
    tolerated = 0.0 if exact else _LATE * cadence.every
    penalty = abs(len(due) - len(seen)), max(apart - tolerated, 0.0)
    return *penalty, cadence.also != _NONE, not regular, cadence.first != cadence.every, apart
