"""Negative controls: wrong twins, made by changing the profile of a trace, which the test of equivalence must notice.

Each control imitates the job wrongly: in another order, at random times, with request sizes drawn from one histogram, or with
half the computation. Controls are computed from a profile, without running a program.
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.busy_time import BUSY_BINS, ROWS
from iotwin.tracesim.calls import FILE_KINDS, GROUPS, READ, WRITE
from iotwin.tracesim.logbins import BINS, BINS_PER_OCTAVE, LOWER_EDGES
from iotwin.tracesim.order import STEPS
from iotwin.tracesim.phases import STARTUP
from iotwin.tracesim.profile import TraceProfile

Floats = NDArray[np.float64]
_SEQUENTIAL, _FORWARD, _BACKWARD = (STEPS.index(name) for name in ("sequential", "forward", "backward"))
_RANDOM = 0.5  # least scatter of a shuffled order (order.py: 0 sorted, 1 random)


def order_shuffled(profile: TraceProfile) -> TraceProfile | None:
    """Return the run as if it read its files, and the bytes of each file, in random order; None if it already does."""
    if _is_random(profile):
        return None
    each = replace(
        profile.each,
        step_calls=_scattered(profile.each.step_calls),
        step_bytes=_scattered(profile.each.step_bytes),
    )
    return _with_order(replace(profile, each=each), 1.0)


def order_sorted(profile: TraceProfile) -> TraceProfile | None:
    """Return the run as if each epoch read its files in order of name; None if the run's order is not random."""
    return _with_order(profile, 0.0) if _is_random(profile) else None


def times_shuffled(profile: TraceProfile) -> TraceProfile | None:
    """Return the run as if its calls were at random times within their phase: even activity, exponential pauses."""
    each, n = profile.each, profile.occurrences.number
    rows = each.row_ns.reshape(n, len(ROWS), BUSY_BINS)
    even = np.repeat(rows.mean(axis=2, keepdims=True), BUSY_BINS, axis=2).reshape(n, -1)
    activity = np.repeat(each.activity.mean(axis=1, keepdims=True), each.activity.shape[1], axis=1)
    changed = replace(each, activity=activity, row_ns=even, gap_ns=_memoryless(each.gap_ns), pause_ns=_memoryless(each.pause_ns))
    return replace(profile, each=changed)


def sizes_by_marginals(profile: TraceProfile) -> TraceProfile | None:
    """Return the run as if the sizes of all requests were drawn from one histogram; None if all requests have one size."""
    each, shape = profile.each, (profile.occurrences.number, len(FILE_KINDS), WRITE + 1, BINS)
    calls, moved = each.size_calls.reshape(shape), each.size_bytes.reshape(shape)
    every, every_bytes = calls.sum(axis=(0, 1, 2)), moved.sum(axis=(0, 1, 2))
    if np.count_nonzero(every) < 2:
        return None
    number = calls.sum(axis=3)
    drawn, drawn_bytes = number[..., None] * every / every.sum(), number[..., None] * every_bytes / every.sum()
    cells = each.bytes.reshape(shape[0], shape[1], len(GROUPS)).copy()
    cells[:, :, READ : WRITE + 1] = drawn_bytes.sum(axis=3)
    changed = replace(
        each,
        size_calls=drawn.reshape(each.size_calls.shape),
        size_bytes=drawn_bytes.reshape(each.size_bytes.shape),
        bytes=cells.reshape(each.bytes.shape),
    )
    return replace(profile, each=changed)


def computation_halved(profile: TraceProfile) -> TraceProfile | None:
    """Return the run with half its computation time; None if it does not compute.

    Computation is the time without waits for data or, if the trace has no waits, the time without reads and writes.
    """
    each, when = profile.each, profile.occurrences
    moving = each.row_ns.reshape(when.number, len(ROWS), BUSY_BINS)[:, : WRITE + 1].sum(axis=(1, 2))
    waiting = each.wait_ns if each.wait_ns.any() else moving
    computing = np.clip(each.duration_ns - waiting, 0, None) * (when.phase != STARTUP)
    if not computing.any():
        return None
    left = 1 - computing / 2 / np.maximum(each.duration_ns, 1)
    room_ns = when.span_ns * left / BUSY_BINS
    changed = replace(
        each,
        duration_ns=each.duration_ns * left,
        typical_step_ns=each.typical_step_ns * left,
        pause_ns=_shortened(each.pause_ns, left),
        step_ns=_shortened(each.step_ns, left),
        gap_ns=_shortened(each.gap_ns, left),
        row_ns=np.minimum(each.row_ns, room_ns[:, None]),
    )
    shorter = replace(
        when, duration_ns=(when.duration_ns * left).astype(np.int64), span_ns=(when.span_ns * left).astype(np.int64)
    )
    return replace(profile, each=changed, occurrences=shorter)


DECISIVE = "computation halved"  # if the test does not notice this control, its result is inconclusive
CONTROLS: dict[str, Callable[[TraceProfile], TraceProfile | None]] = {
    "order shuffled": order_shuffled,
    "order sorted": order_sorted,
    "times shuffled": times_shuffled,
    "sizes by marginals alone": sizes_by_marginals,
    DECISIVE: computation_halved,
}


def _is_random(profile: TraceProfile) -> bool:
    # If the order of parts within large files is known, it is used, because then there are few files.
    every = np.where(np.isnan(profile.order.jumps), profile.order.scatter, profile.order.jumps)
    known = every[~np.isnan(every)]
    return bool(len(known)) and float(np.median(known)) >= _RANDOM


def _with_order(profile: TraceProfile, value: float) -> TraceProfile:
    """Return the run with all known statistics of file order (order.py) set to `value`."""
    order = profile.order
    scatter, drift, jumps = (np.where(np.isnan(known), np.nan, value) for known in (order.scatter, order.drift, order.jumps))
    return replace(profile, order=replace(order, scatter=scatter, drift=drift, jumps=jumps))


def _scattered(steps: Floats) -> Floats:
    """Return `steps`, (n, 2 * STEPS). Of the sequential ones, half are now counted as forward and half as backward."""
    moved = steps.reshape(-1, WRITE + 1, len(STEPS)).copy()
    moved[..., [_FORWARD, _BACKWARD]] += moved[..., [_SEQUENTIAL]] / 2
    moved[..., _SEQUENTIAL] = 0
    return moved.reshape(steps.shape)


def _memoryless(times: Floats) -> Floats:
    """Return histograms of time by length of the gap, (n, BINS), as if the lengths were exponentially distributed.

    The total time and the number of gaps are the same as in `times`.
    """
    total, number = times.sum(axis=1), (times / LOWER_EDGES).sum(axis=1)
    mean = np.where(number > 0, total / np.maximum(number, 1e-9), 1.0)
    # If lengths are exponential, the share of time in gaps of up to a length follows a gamma distribution of shape 2.
    reached = LOWER_EDGES / mean[:, None]
    share = 1 - np.exp(-reached) * (1 + reached)
    made: Floats = total[:, None] * np.diff(share, axis=1, append=1.0)
    return made


def _shortened(times: Floats, left: Floats) -> Floats:
    """Return histograms of time by length, (n, BINS), with all lengths in row i multiplied by `left[i]`, at most 1."""
    shift = -np.log2(np.maximum(left, 2.0**-20)) * BINS_PER_OCTAVE
    whole = shift.astype(np.int64)
    part = (shift - whole)[:, None]
    bins = np.arange(BINS)
    rows = np.arange(len(times))[:, None]
    from_above = [
        np.where(bins + step < BINS, times[rows, np.minimum(bins + step, BINS - 1)], 0.0)
        for step in (whole[:, None], whole[:, None] + 1)
    ]
    shifted: Floats = ((1 - part) * from_above[0] + part * from_above[1]) * left[:, None]
    return shifted
