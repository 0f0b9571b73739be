"""What the test of equivalence looks at beside the dimensions: times and amounts of a run, each as one number.

A dimension scores a mean, in which half the time of training can hide; here each number stands for itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tracesim.calls import CLOSE, FILE_KINDS, GROUPS, SYNC, WRITE
from tracesim.phases import PHASES, RUN, TIMED
from tracesim.profile import Summary

_SMALL_TIME = 0.1  # a phase of this share of the time counts half as much as its own times differ
_SMALL_COMPUTATION = 0.02  # the same of a phase without its waits for data
_SMALL_AMOUNT = 0.01  # the same of calls and bytes
_WHERE = {phase: "the whole run" if phase == RUN else PHASES[phase] for phase in TIMED}


@dataclass(frozen=True)
class Kind:
    """How far values of a kind may be apart, as differences of logarithms: in any twin, and usually between runs of a job."""

    tolerance: float
    usual: float


TIME = Kind(tolerance=0.02, usual=0.02)
AMOUNT = Kind(tolerance=0.03, usual=0.003)
READERS = Kind(tolerance=0.05, usual=0.03)


class Aspect(NamedTuple):
    """An amount of one run, and its natural logarithm once what is too small to matter has been added to it."""

    name: str
    kind: Kind
    amount: float
    log: float


def aspects_of(s: Summary) -> list[Aspect]:
    """Return the times and amounts of a run; a time only where there is any."""
    return [
        Aspect(name, kind, amount, float(np.log(amount + small)))
        for name, kind, amount, small in [*_times(s), *_amounts(s)]
        if amount + small > 0
    ]


def _times(s: Summary) -> Iterator[tuple[str, Kind, float, float]]:
    # Of occurrences the quickest: what else the machine has to do makes some of them longer, and none shorter.
    times = (s.occurrences * s.quickest_ns)[list(TIMED)]
    total = float(times.sum())
    if np.count_nonzero(times) > 1:
        yield "time in all", TIME, total, 0.0
    for phase, time in zip(TIMED, times.tolist(), strict=True):
        if time > 0:
            yield f"time in {_WHERE[phase]}", TIME, time, _SMALL_TIME * total
        if s.quickest_step_ns[phase] > 0:
            yield f"time per step of {_WHERE[phase]}", TIME, float(s.quickest_step_ns[phase]), 0.0
        if s.least_without_waits_ns[phase] > 0:
            # Their sum, not the time from one wait to the next: whether a batch is waited for at all is the loaders' luck.
            without_ns = float(s.occurrences[phase] * s.least_without_waits_ns[phase])
            yield f"time in {_WHERE[phase]} without waits for data", TIME, without_ns, _SMALL_COMPUTATION * time


def _amounts(s: Summary) -> Iterator[tuple[str, Kind, float, float]]:
    calls, moved = s.calls.sum(axis=0), s.bytes.sum(axis=0)
    for kind, files in enumerate(FILE_KINDS):
        for group, op in enumerate(GROUPS):
            if group != CLOSE:  # as many as are opened
                few = 0.5 if group == SYNC else _SMALL_AMOUNT * float(calls.sum())
                yield f"{op} calls on {files} files", AMOUNT, float(calls[kind, group]), few
            if group <= WRITE:
                verb = "written to" if group == WRITE else "read from"
                yield f"bytes {verb} {files} files", AMOUNT, float(moved[kind, group]), _SMALL_AMOUNT * float(moved.sum())
        yield f"{files} files", AMOUNT, float(s.file_sizes[kind].sum()), 0.5
    yield "checkpoint files written", AMOUNT, s.written_files, 0.5
    for phase in TIMED:
        if s.readers[phase] >= 1:
            yield f"readers in {_WHERE[phase]}", READERS, float(s.readers[phase]), 0.0
