"""How long training waits at an asynchronous checkpoint: the time of copying its state, found from the steps that hold a copy."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.fit.checkpoints.find_checkpoints import LATE, SeenCheckpoints
from iotwin.benchmark.fit.passes import Pass

_FEWEST = 3  # with fewer checkpoints, their steps cannot be distinguished from others
_EACH = 0.9  # each step holds a snapshot if so many as this share of them were seen
_SOONEST, _LATEST = 0.25, 0.5  # shares of steps that all hold a snapshot: whose room came soonest, and latest
_FOLLOWS = 0.7  # the step ends by the room that it has: what follows that varies less than this share of what steps do
_ERRORS = 3.0  # medians that differ by so many standard errors do not do so by chance


def apart_from_snapshots(
    training: Sequence[Pass], checkpoints: SeenCheckpoints
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the seconds of computation of the steps without a snapshot, and the seconds of each snapshot.

    A checkpoint's first file is opened when the state is copied. So the copy lies in the last computation that had begun by then.
    If that one had only just begun, it lies in the one before, since another thread opens the file. If these steps are not
    significantly longer than others, all computations are returned, and no snapshots. If all steps hold a snapshot, those that
    end when there is room for another show what follows the wait, and those whose room came soonest show what they compute.
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
    known = (held >= 0) & (opened_ns <= begins_ns[held] + compute_s[held] * 1e9 + late_ns)  # else after the last known step
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
    """The same of steps that all hold a snapshot: as far as they end when there is room, from the room on it is that."""
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
    """Return whether the median is significantly higher; the spread of the others is that of their middle half."""
    low, middle, high = np.quantile(others_s, (0.25, 0.5, 0.75))
    error = 1.2533 * (high - low) / 1.349 * np.sqrt(1 / len(values_s) + 1 / len(others_s))
    return bool(np.median(values_s) > middle + _ERRORS * error)


def _room_ns(checkpoints: SeenCheckpoints, begins_ns: NDArray[np.int64], opened_ns: NDArray[np.int64]) -> NDArray[np.int64]:
    """When, from the beginning of each step, so few checkpoints were under way that another could begin."""
    spans = np.array([(point.files[0].start_ns, max(file.whole_ns for file in point.files)) for point in checkpoints.each])
    room = begins_ns.copy()
    for number, (begin, opened) in enumerate(zip(begins_ns, opened_ns, strict=True)):
        whole = np.sort(spans[(spans[:, 0] < opened) & (spans[:, 1] > begin), 1])
        if len(whole) >= checkpoints.in_flight:
            room[number] = min(whole[len(whole) - checkpoints.in_flight], opened)
    return room
