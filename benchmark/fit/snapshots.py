"""What training waits for at a checkpoint that is written beside it: the copy of its state, told from the steps that hold one."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from benchmark.fit.checkpoints import LATE, SeenCheckpoints
from benchmark.fit.times import Times

_FEWEST = 3  # with fewer checkpoints, their steps cannot be told from others
_ERRORS = 3.0  # medians that differ by so many standard errors do not do so by chance


def apart_from_snapshots(times: Times, checkpoints: SeenCheckpoints) -> tuple[Times, NDArray[np.float64]]:
    """Return `times` without the steps that hold a snapshot, and the seconds of each snapshot.

    A checkpoint's first file is opened once the state is copied, so the copy lies in the last computation that had begun by
    then; or in the one before, where that had only just begun, since another thread opens the file. Where these steps are no
    longer than chance makes them, `times` stay whole, and there are no snapshots.
    """
    if not checkpoints.asynchronous or times.waits_unseen or not len(times.compute_s):
        return times, np.zeros(0)
    order = np.argsort(times.begins_ns, kind="stable")
    begins_ns, compute_s = times.begins_ns[order], times.compute_s[order]
    late_ns = round(LATE * float(np.median(compute_s)) * 1e9)
    opened_ns = np.array([point.files[0].start_ns for point in checkpoints.each], np.int64)
    held = np.searchsorted(begins_ns, opened_ns - late_ns, side="right") - 1
    known = (held >= 0) & (opened_ns <= begins_ns[held] + compute_s[held] * 1e9 + late_ns)  # else after the last known step
    opened_ns, held = opened_ns[known], held[known]
    rest = np.setdiff1d(np.arange(len(compute_s)), held)
    if min(len(held), len(rest)) < _FEWEST or not _longer(compute_s[held], compute_s[rest]):
        return times, np.zeros(0)
    ready_ns = begins_ns[held] + np.median(compute_s[rest]) * 1e9  # when the computation was done, and the checkpoint was due
    waits_s = np.maximum(_room_ns(checkpoints, begins_ns[held], opened_ns) - ready_ns, 0) / 1e9
    snapshots_s = np.maximum(compute_s[held] - np.median(compute_s[rest]) - waits_s, 0.0)
    return replace(times, compute_s=compute_s[rest], begins_ns=begins_ns[rest]), snapshots_s


def _longer(values_s: NDArray[np.float64], others_s: NDArray[np.float64]) -> bool:
    """Whether the median is higher by more than chance; the middle half of the others tells how much they vary."""
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
