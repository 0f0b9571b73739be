"""The cadence of evaluations and checkpoints, from the epochs, steps or seconds after which they were seen."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from iotwin.workloads.policies.cadence import Cadence

_NONE = -1  # Cadence.also
_LATE = 0.15  # an asynchronous checkpoint may be seen late by this share of the interval in steps
_FEWEST = 4  # least number of intervals that can show whether a clock or a step count triggers checkpoints
_BY_TIME = 0.5  # a clock triggers checkpoints if intervals in seconds vary (relatively) by less than this share of those in steps
_LATE_STEPS = 1  # intervals by step count may differ by this many steps, since a checkpoint may be seen late
_MANY_MISSED = 0.05  # a cadence is rejected if its number of events differs by more than this share from the observed number
_ROW = 3  # this many events at equal intervals are not coincidence


def find_cadence(seen: Sequence[int], until: int, exact: bool, one_more: bool = True) -> Cadence:
    """Return the cadence whose events up to `until` match `seen` best: first in number, then in time.

    `seen` and `until` are epochs, steps or seconds, counted from 1; `seen` ascends. If not `exact`, events may be a bit late.
    If `one_more`, the first or the last event may be an additional one, outside the cadence. Among equal matches, the simplest
    cadence is returned. If `seen` is empty, the returned cadence has its first event after `until`.
    """
    if not seen:
        return Cadence(until + 1, until + 1)
    return min(_candidates(seen, until, one_more), key=lambda cadence: _distance(cadence, seen, until, exact))


def explains(cadence: Cadence, seen: Sequence[int], until: int, exact: bool) -> bool:
    """True if `cadence` has about as many events as `seen`, at the same times. `find_cadence` explains the arguments."""
    missed, apart, *_ = _distance(cadence, seen, until, exact)
    return missed <= max(1, _MANY_MISSED * len(seen)) and apart == 0


def steady(seen: Sequence[int]) -> int | None:
    """Return the n for which the events in `seen` came after n, 2 n, 3 n, ... steps or a little later; None if there is no such
    n.
    """
    if len(seen) < _ROW:
        return None
    numbers = np.arange(1, len(seen) + 1)
    every = int((np.array(seen) // numbers).min())  # no event comes early
    return every if (np.array(seen) - numbers * every <= _LATE * every).all() else None


def find_intervals(seen: Sequence[int], in_epoch: int) -> list[tuple[int, int]]:
    """Return (step, interval in steps from that step on) for each change of the interval between the checkpoints `seen`.

    An epoch has `in_epoch` steps. Checkpoints at ends of epochs are ignored if there are then fewer changes.
    """
    within = [step for step in seen if step % in_epoch]
    return min((_runs(steps) for steps in (seen, within) if steps), key=len, default=[])


def _runs(steps: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first step, interval) of each run of equal intervals. A single unequal interval does not end a run."""
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
    """Return the seconds between checkpoints if a clock triggers them; None if a step count does, or if this is unknown.

    `steps`: number of steps done when each checkpoint began; `begun_ns`: when it began. Both ascend. A checkpoint begins at the
    end of a step, on average half a step after it is due.
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
