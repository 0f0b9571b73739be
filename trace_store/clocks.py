"""Convert times between CLOCK_MONOTONIC and wall time by a trace's readings of both; measure drift, uncertainty and steps.

Between two readings, the difference of the two clocks is interpolated. Before the first and after the last, it is constant.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.common.units import format_duration
from iotwin.trace_store.manifest import ClockPair

# adjtimex(2) changes a clock's rate by at most 500 ppm (MAX_TICKADJ and the NTP limit). A larger change means a step.
_SLEW = 500e-6
_NOISE_NS = 1_000_000  # a smaller difference may be the scheduler's delay between reading the two clocks


Times = NDArray[np.int64]


def realtime_to_monotonic(clock: list[ClockPair]) -> Callable[[Times], Times]:
    """Return a function that converts UNIX times to CLOCK_MONOTONIC, both in ns. `clock` must hold at least one reading."""
    monotonic, real = _readings(clock)
    return lambda times: times + interpolated(times, real, monotonic - real)


def monotonic_to_realtime(clock: list[ClockPair]) -> Callable[[Times], Times]:
    """Return a function that converts CLOCK_MONOTONIC to UNIX times, both in ns. `clock` must hold at least one reading."""
    monotonic, real = _readings(clock)
    return lambda times: times + interpolated(times, monotonic, real - monotonic)


def between_hosts(clock: list[ClockPair], reference: list[ClockPair]) -> Callable[[Times], Times]:
    """Return a function that converts CLOCK_MONOTONIC ns of one host to those of a reference host, by way of wall time.

    `clock` and `reference`: the clock readings on the two hosts.
    """
    to_realtime, to_reference = monotonic_to_realtime(clock), realtime_to_monotonic(reference)
    return lambda times: to_reference(to_realtime(times))


def one_by_one(mapping: Callable[[Times], Times]) -> Callable[[int], int]:
    """Return `mapping` as a function of one time instead of an array."""
    return lambda time_ns: int(mapping(np.array([time_ns], np.int64))[0])


def _readings(clock: list[ClockPair]) -> tuple[Times, Times]:
    monotonic = np.array([pair.monotonic_ns for pair in clock], np.int64)
    return monotonic, np.array([pair.realtime_ns for pair in clock], np.int64)


def interpolated(times: Times, at: Times, offsets: Times) -> Times:
    """Return the offset at each of `times`, shape (n,), from `offsets` at the times `at`; constant before and after these."""
    # Times in ns exceed the precision of float64, but the small drift of the clocks does not. So only the drift is interpolated.
    drift = np.interp(times - at[0], at - at[0], offsets - offsets[0])
    whole: Times = offsets[0] + np.rint(drift).astype(np.int64)
    return whole


@dataclass(frozen=True)
class ClockSummary:
    """Figures about the clock readings of a trace.

    `drift_ppm`: drift of wall time against CLOCK_MONOTONIC, without steps; None if there are fewer than two readings.
    `uncertainty_ns`: largest error of a computed wall time.
    `steps`: for each time that the wall clock was set, (CLOCK_MONOTONIC of the next reading, the change), both in ns.
    """

    readings: int
    drift_ppm: float | None
    uncertainty_ns: int | None
    steps: list[tuple[int, int]]


def summarise_clock(clock: list[ClockPair]) -> ClockSummary:
    """Return the figures about the clock readings `clock` of one trace; all are None if there are no readings."""
    if not clock:
        return ClockSummary(0, None, None, [])
    monotonic, real = _readings(clock)
    offset = real - monotonic
    width = np.array([pair.uncertainty_ns for pair in clock], np.int64)
    elapsed, moved = np.diff(monotonic), np.diff(offset)
    is_step = np.abs(moved) > _NOISE_NS + elapsed * _SLEW + width[1:] + width[:-1]
    steps = [(int(time_ns), int(by)) for time_ns, by in zip(monotonic[1:][is_step], moved[is_step], strict=True)]
    smooth = int(elapsed[~is_step].sum())
    drift = float(moved[~is_step].sum() / smooth * 1e6) if smooth else None
    # The clock was stepped at an unknown time between two readings: wall times between them may be wrong by the whole step.
    return ClockSummary(len(clock), drift, int(width.max() + sum(abs(by) for _, by in steps)), steps)


def step_notes(clock: list[ClockPair]) -> list[str]:
    """Return a note for each time that somebody set the wall clock while the trace was recorded."""
    begin = clock[0].monotonic_ns if clock else 0
    return [
        f"the wall clock was set {'forward' if by > 0 else 'back'} by {format_duration(abs(by))}, "
        f"seen {format_duration(at - begin)} after the first reading: wall times around then are wrong by up to that"
        for at, by in summarise_clock(clock).steps
    ]
