"""The aspects of a run: single times and amounts that the test of equivalence compares in addition to the dimensions.

The score of a dimension is a mean, so it may hide a single large difference. Therefore, each aspect is tested separately.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from iotwin.tracesim.calls import CLOSE, FILE_KINDS, GROUPS, SYNC, WRITE
from iotwin.tracesim.phases import PHASES, RUN, TIMED
from iotwin.tracesim.profile import Summary

# Runs are compared by log(amount + addend). The addend makes differences of small amounts less important.
_SMALL_TIME = 0.1  # addend to the time in a phase, as a share of the time of all phases
_SMALL_COMPUTATION = 0.02  # addend to a phase's time without waits for data, as a share of the phase's time
_SMALL_AMOUNT = 0.01  # addend to calls or bytes by operation and kind of file, as a share of all calls or bytes
_SMALL_COUNT = 0.5  # addend to a number of files or syncs; small, so that one more file or sync is noticed
_WHERE = {phase: "the whole run" if phase == RUN else PHASES[phase] for phase in TIMED}


@dataclass(frozen=True)
class AspectKind:
    """A kind of aspect, and how much aspects of this kind may differ, as differences of natural logarithms.

    `tolerance` is allowed in any twin. `usual` is the usual standard deviation among reruns of a job.
    """

    tolerance: float
    usual: float


TIME = AspectKind(tolerance=0.02, usual=0.02)
AMOUNT = AspectKind(tolerance=0.03, usual=0.003)
READERS = AspectKind(tolerance=0.05, usual=0.03)


class Aspect(NamedTuple):
    """An amount of one run, and `log`, the natural logarithm of the amount plus its addend."""

    name: str
    kind: AspectKind
    amount: float
    log: float


def aspects_of(s: Summary) -> list[Aspect]:
    """Return the times and amounts of a run that the test compares one by one. Times that are 0 in this run are left out."""
    return [
        Aspect(name, kind, amount, float(np.log(amount + small)))
        for name, kind, amount, small in [*_times(s), *_amounts(s)]
        if amount + small > 0
    ]


def _times(s: Summary) -> Iterator[tuple[str, AspectKind, float, float]]:
    # Times are those of the shortest occurrence of each phase, because other work on the machine can only make occurrences
    # longer.
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
            # Only the total over a phase is compared, since whether a rank waits for a particular batch is chance.
            without_ns = float(s.occurrences[phase] * s.least_without_waits_ns[phase])
            yield f"time in {_WHERE[phase]} without waits for data", TIME, without_ns, _SMALL_COMPUTATION * time


def _amounts(s: Summary) -> Iterator[tuple[str, AspectKind, float, float]]:
    calls, moved = s.calls.sum(axis=0), s.bytes.sum(axis=0)
    for kind, files in enumerate(FILE_KINDS):
        for group, op in enumerate(GROUPS):
            if group != CLOSE:  # a file is closed as often as it is opened
                few = _SMALL_COUNT if group == SYNC else _SMALL_AMOUNT * float(calls.sum())
                yield f"{op} calls on {files} files", AMOUNT, float(calls[kind, group]), few
            if group <= WRITE:
                verb = "written to" if group == WRITE else "read from"
                yield f"bytes {verb} {files} files", AMOUNT, float(moved[kind, group]), _SMALL_AMOUNT * float(moved.sum())
        yield f"{files} files", AMOUNT, float(s.file_sizes[kind].sum()), _SMALL_COUNT
    yield "checkpoint files written", AMOUNT, s.written_files, _SMALL_COUNT
    for phase in TIMED:
        if s.readers[phase] >= 1:
            yield f"readers in {_WHERE[phase]}", READERS, float(s.readers[phase]), 0.0
