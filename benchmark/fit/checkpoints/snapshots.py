"""Infer how long training waits for the snapshot of an asynchronous checkpoint, from the steps that contain one."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.fit.checkpoints.find_checkpoints import LATE, SeenCheckpoints
from iotwin.benchmark.fit.passes import Pass

_FEWEST = 3  # least number of steps with a snapshot that can be compared with other steps
_EACH = 0.9  # all steps count as steps with a snapshot if at least this share of them has one
_SOONEST, _LATEST = 0.25, 0.5  # shares of the steps that waited shortest, and longest, until another checkpoint could begin
_FOLLOWS = 0.7  # steps wait if the time after the wait varies by at most this share of the variation of whole steps
_ERRORS = 3.0  # a difference of medians by more standard errors than this is statistically significant


def apart_from_snapshots(
    training: Sequence[Pass], checkpoints: SeenCheckpoints
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds of computation of the steps without a snapshot, and the seconds of each snapshot.

    The job copies its state before it opens a checkpoint's first file, so the copy is part of the step under way. If that step
    had only just begun, the copy is part of the step before: a background thread opens the file a little later. If steps with a
    snapshot are not significantly longer than other steps, returns all computation times and no snapshots.
    """
    compute_s = np.concatenate([part.computation_s for part in training])
    begins_ns = np.concatenate([part.taken_ns for part in training])
    if not checkpoints.asynchronous:
        return compute_s, np.zeros(0)
    order = np.argsort(begins_ns, kind="stable")
    begins_ns, compute_s = begins_ns[order], compute_s[order]
    late_ns = round(LATE * float(np.median(compute_s)) * 1e9)
    opened_ns = np.array([point.files[0].start_ns for point in checkpoints.each], np.int64)
    held = np.searchsorted(begins_ns, opened_ns - late_ns, side="right") - 1
    # False if the file was opened outside of the known steps.
    known = (held >= 0) & (opened_ns <= begins_ns[held] + compute_s[held] * 1e9 + late_ns)
    opened_ns, held = opened_ns[known], held[known]
    rest = np.setdiff1d(np.arange(len(compute_s)), held)
    if len(held) >= max(_EACH * len(compute_s), _FEWEST):
        return _apart_from_waits(begins_ns, compute_s, held, _room_ns(checkpoints, begins_ns[held], opened_ns))
    if len(held) < _FEWEST or not _longer(compute_s[held], compute_s[rest]):
        return compute_s, np.zeros(0)
    ready_ns = begins_ns[held] + np.median(compute_s[rest]) * 1e9  # when the computation was done, and the checkpoint was due
    waits_s = np.maximum(_room_ns(checkpoints, begins_ns[held], opened_ns) - ready_ns, 0) / 1e9
    snapshots_s = np.maximum(compute_s[held] - np.median(compute_s[rest]) - waits_s, 0.0)
    return compute_s[rest], snapshots_s


def _apart_from_waits(
    begins_ns: NDArray[np.int64],
    compute_s: NDArray[np.float64],
    held: NDArray[np.int64],
    room_ns: NDArray[np.int64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return (computation_s, snapshots_s) as `apart_from_snapshots` does, for steps that all have a snapshot.

    `room_ns`: for each checkpoint, when another checkpoint could begin. The snapshot follows this wait, so steps that waited long
    show the time of the snapshot. Steps that waited least show the computation.
    """
    held, first = np.unique(held, return_index=True)
    lengths_s, room_s = compute_s[held], (room_ns[first] - begins_ns[held]) / 1e9
    soon, late = (room_s <= np.quantile(room_s, _SOONEST)), (room_s > np.quantile(room_s, 1 - _LATEST))
    after_s = lengths_s - room_s
    if min(soon.sum(), late.sum()) < _FEWEST or _spread(after_s[late]) > _FOLLOWS * _spread(lengths_s):
        return compute_s, np.zeros(0)
    if not _longer(lengths_s[late], lengths_s[soon]):
        return compute_s, np.zeros(0)
    snapshots_s = np.minimum(np.maximum(after_s[late], 0.0), np.median(lengths_s[soon]))
    computed_s = np.maximum(lengths_s[soon] - np.median(snapshots_s), 0.0)
    return computed_s, snapshots_s


def _spread(values: NDArray[np.float64]) -> float:
    low, high = np.quantile(values, (0.25, 0.75)) if len(values) else (0.0, 0.0)
    return float(high - low)


def _longer(values_s: NDArray[np.float64], others_s: NDArray[np.float64]) -> bool:
    """Return whether the median of `values_s` is significantly higher than that of `others_s`."""
    low, middle, high = np.quantile(others_s, (0.25, 0.5, 0.75))
    error = 1.2533 * (high - low) / 1.349 * np.sqrt(1 / len(values_s) + 1 / len(others_s))
    return bool(np.median(values_s) > middle + _ERRORS * error)


def _room_ns(checkpoints: SeenCheckpoints, begins_ns: NDArray[np.int64], opened_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return, for each step, when another checkpoint could begin because few enough were under way; at least the step's begin."""
    spans = np.array([(point.files[0].start_ns, max(file.whole_ns for file in point.files)) for point in checkpoints.each])
    room = begins_ns.copy()
    for number, (begin, opened) in enumerate(zip(begins_ns, opened_ns, strict=True)):
        whole = np.sort(spans[(spans[:, 0] < opened) & (spans[:, 1] > begin), 1])
        if len(whole) >= checkpoints.in_flight:
            room[number] = min(whole[len(whole) - checkpoints.in_flight], opened)
    return room
