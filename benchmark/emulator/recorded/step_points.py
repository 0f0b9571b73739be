"""Time the training of a replay: the player records, at points of the ranks' main threads, how each spent its time.

A point is a row with the operation STEP, inserted into the recording. Its columns are:

* `subject`: the training pass, counted from 0 for each rank; `fd`: the number of its steps;
* `size`: a StepPoint;
* `offset`: 0 if the rank reads its batches itself. Else 1, plus a time in ns. That of END is how long the rank unpacks batches
  after the first. That of STARTED is how long it works while the recording has it wait for another thread (working_waits_ns);
* `flags`: the point's index in `StepPoints`.
"""

import mmap
from collections.abc import Sequence
from dataclasses import replace
from enum import IntEnum
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.results.training import TrainedPass
from iotwin.workload_yaml.recorded_structure import pass_bounds
from iotwin.workload_yaml.recording import Op, RecordedBatches, TwinRecording

_READS = (Op.OPEN, Op.READ, Op.CLOSE, Op.MAP, Op.TOUCH, Op.UNMAP, Op.COPY)
_WRITES = (Op.WRITE, Op.SYNC, Op.DATASYNC, Op.RENAME, Op.UNLINK, Op.COPY_TO, Op.TRUNCATE)
_WAITS = (Op.PIPE_READ, Op.POLL, Op.WAIT)
_GROUPS = (_READS, _WRITES, _WAITS, (Op.MEET,))
_WITHOUT_THINK = (Op.WAIT, Op.JOIN)  # waits that are recorded as if they began directly after the thread's previous row
_TIMED_BY_END = (Op.POLL, Op.PIPE_READ, *_WITHOUT_THINK)  # operations whose `at_ns` is when they ended


class StepPoint(IntEnum):
    """Position of a recorded STEP row in a training pass: the part of the pass that the rank has completed by then."""

    BEGIN = 0  # nothing of the pass yet: it is about to request its first batch
    STARTED = 1  # the first step
    END = 2  # the last step


class StepPoints:
    """Memory that forked processes share: for each point, when it was reached, and the time of its thread's calls until then."""

    def __init__(self, count: int) -> None:
        self._width = 1 + len(_GROUPS)
        memory = mmap.mmap(-1, max(count * self._width, 1) * 8)
        self._cells = memoryview(memory).cast("q")
        self._rows = np.frombuffer(memory, np.int64)[: count * self._width].reshape(count, self._width)

    def record(self, index: int, due_ns: int, spent_ns: Sequence[int]) -> None:
        """Record that the point was due at `due_ns`, after the thread's rows had taken `spent_ns` by operation."""
        values = (due_ns, *(sum(spent_ns[op] for op in group) for group in _GROUPS))
        for column, value in enumerate(values, index * self._width):
            self._cells[column] = value

    def passes(self, recording: TwinRecording, first_rank: int, think_scale: float = 1.0) -> list[TrainedPass]:
        """Return the passes that the replay of `recording` has ended. `first_rank`: number of the recording's first rank.

        The time of unpacking batches counts as waiting for data, because the rank has no data yet on which it could compute.
        Waits for other threads during computation do not count as such. `think_scale`: factor for the recorded times between
        calls.
        """
        columns = recording.columns
        rows = np.flatnonzero(columns["op"] == Op.STEP)
        process = np.array(recording.header.threads, np.int64)[columns["thread"][rows]]
        ranks = {number: first_rank + index for index, number in enumerate(np.unique(process).tolist())}
        found = []
        for begin in range(0, len(rows), len(StepPoint)):
            times = self._rows[begin : begin + len(StepPoint)]
            if (times[:, 0] == 0).any():
                continue  # the replay was stopped before
            row, parts = rows[begin], times[StepPoint.END] - times[StepPoint.STARTED]
            after_ns, reads, writes, waits, meets = parts.tolist()
            working, unpacking = columns["offset"][rows[[begin + StepPoint.STARTED, begin + StepPoint.END]]].tolist()
            if unpacking:
                waits = max(waits + int((unpacking - working) * think_scale), 0)
            else:
                waits, reads = waits + reads, 0
            found.append(
                TrainedPass(
                    ranks[int(process[begin])], int(columns["subject"][row]) + 1, int(columns["fd"][row]),
                    int(times[StepPoint.END, 0] - times[StepPoint.BEGIN, 0]), max(after_ns - reads - writes - waits - meets, 0),
                    waits, meets, reads + writes,
                )
            )  # fmt: skip
        return found


def with_points(recording: TwinRecording) -> TwinRecording:
    """Return an unedited recording with added points in its training passes. The times of all other rows remain the same.

    A pass that does not end within the recording gets no points.
    """
    batches = recording.header.batches
    if batches is None:
        return recording
    bounds, starts, columns = pass_bounds(batches), recording.starts(), recording.columns
    ended: dict[int, list[int]] = {}  # by rank: when its passes so far ended
    before, values = [], []
    for index, each in enumerate(batches.passes):
        thread = int(np.searchsorted(recording.header.threads, each.process))
        own = slice(int(starts[thread]), int(starts[thread + 1]))
        earlier = ended.setdefault(each.process, [])
        moments = _moments(batches, int(bounds[index]), int(bounds[index + 1]), max(earlier, default=0))
        at_ns = columns["at_ns"][own]
        if not each.training or not len(at_ns) or moments[-1] > at_ns[-1]:
            continue
        offsets = [0, 0, 0]
        if each.depth:
            part = int(bounds[index]), int(bounds[index + 1])
            offsets = [1, 1 + working_waits_ns(recording, *part), 1 + int(unpacking_ns(recording, *part).sum())]
        for point, moment, offset in zip(StepPoint, moments, offsets, strict=True):
            before.append(own.start + int(np.searchsorted(at_ns, moment)))
            values.append((thread, moment, len(earlier), point, each.batches, offset))
        earlier.append(moments[-1])
    order = sorted(range(len(before)), key=lambda point: (before[point], values[point][1]))
    return _inserted(recording, np.array(before, np.int64)[order], np.array(values, np.int64).reshape(-1, 6)[order])


def unpacking_ns(recording: TwinRecording, first: int, end: int) -> NDArray[np.int64]:
    """Return how long a rank unpacked before it took each batch of a pass after the first, in ns.

    This is the time from the end of a rank's computation until it takes the next batch, without its waits. The rank may unpack
    other batches in this time, too. A batch for which the rank does not wait counts as 0. `first`, `end`: bounds of the batches.
    """
    batches, columns = recording.batches, recording.columns
    taken, computed = (np.array(each[first:end], np.int64) for each in (batches.taken_ns, batches.computed_ns))
    free, taken = computed[:-1], taken[1:]
    own = _main_rows(recording, first)
    at_ns, waits = columns["at_ns"][own], np.flatnonzero(np.isin(columns["op"][own], _WAITS))
    ends, begins = at_ns[waits], at_ns[np.maximum(waits - 1, 0)] + columns["think_ns"][own][waits]
    batch = np.searchsorted(taken, ends)
    within = (batch < len(taken)) & (ends >= np.append(free, 0)[batch])
    batch, waited = batch[within], (ends - np.maximum(begins, np.append(free, 0)[batch]))[within]
    spent = np.bincount(batch, waited.clip(0), len(taken)).astype(np.int64)
    found: NDArray[np.int64] = np.where(np.bincount(batch, minlength=len(taken)) > 0, (taken - free - spent).clip(0), 0)
    return found


def working_waits_ns(recording: TwinRecording, first: int, end: int) -> int:
    """Return the time (ns) in which a rank works on a pass's batches after the first, although the recording has it wait.

    The work is unpacking and computing. If a rank makes no call at the end of a step, the recording shows a wait for the thread
    that requests the next batch. A wait that lasts beyond the pass does not count. `first`, `end`: bounds of the batches.
    """
    batches, columns = recording.batches, recording.columns
    taken, computed = (np.array(each[first + 1 : end], np.int64) for each in (batches.taken_ns, batches.computed_ns))
    if not len(taken):
        return 0
    begun = taken - unpacking_ns(recording, first, end)
    bounds = np.maximum.accumulate(np.stack([begun, computed], axis=1).ravel())
    worked = np.append(0, np.cumsum(np.diff(bounds) * (np.arange(len(bounds) - 1) % 2 == 0)))  # until each of the bounds
    own = _main_rows(recording, first)
    at_ns = columns["at_ns"][own]
    waits = np.flatnonzero(columns["op"][own][: np.searchsorted(at_ns, computed[-1])] == Op.WAIT)
    before, after = (np.interp(at_ns[rows], bounds, worked) for rows in (np.maximum(waits - 1, 0), waits))
    return int((after - before).sum())


def _main_rows(recording: TwinRecording, first: int) -> slice:
    """Return the rows of the main thread of the rank whose pass has the batch at index `first` as its first."""
    batches, starts = recording.batches, recording.starts()
    process = next(each.process for each, begin in zip(batches.passes, pass_bounds(batches), strict=False) if begin == first)
    thread = int(np.searchsorted(recording.header.threads, process))
    return slice(int(starts[thread]), int(starts[thread + 1]))


def numbered(recording: TwinRecording) -> TwinRecording:
    """Return the recording with an index for each of its points."""
    points, flags = recording.columns["op"] == Op.STEP, recording.columns["flags"].copy()
    flags[points] = np.arange(points.sum())
    return replace(recording, columns={**recording.columns, "flags": flags})


def _moments(batches: RecordedBatches, first: int, end: int, earliest: int) -> list[int]:
    """Return when each point of a pass was reached (ns), ascending and not before `earliest`."""
    times = (batches.requested_ns[first], batches.computed_ns[first], batches.computed_ns[end - 1])
    return list(accumulate((earliest, *times), max))[1:]


def _inserted(recording: TwinRecording, before: NDArray[np.int64], values: NDArray[np.int64]) -> TwinRecording:
    """Return the recording with a point inserted before each of the rows `before`. The time before these rows is divided.

    `values`: thread, moment, pass, StepPoint, steps and `offset` of each point, shape (points, 6).
    """
    if not len(before):
        return recording
    columns = recording.columns
    thread, moment, number, point, steps, offset = values.T
    # A point divides the time between two calls. When a wait began is not recorded; what precedes it counts as computation.
    left, by_end = columns["think_ns"][before], np.isin(columns["op"][before], _TIMED_BY_END)
    since_ns = np.where(by_end, columns["at_ns"][np.maximum(before - 1, 0)], columns["at_ns"][before] - left)
    # If a wait begins later, because the thread computes first, it still ends when the awaited event has happened.
    shortens_wait = np.isin(columns["op"][before], _WITHOUT_THINK)
    at = np.clip(moment - since_ns, 0, np.where(shortens_wait, columns["at_ns"][before] - since_ns, left))
    same = np.append(False, before[1:] == before[:-1])
    think = np.where(same, np.maximum(at - np.append(0, at[:-1]), 0), at)
    others = columns["think_ns"].copy()
    np.subtract.at(others, before, np.where(shortens_wait, 0, think))
    new = {
        "thread": thread, "at_ns": moment, "think_ns": think, "op": np.full(len(before), Op.STEP), "subject": number,
        "size": point, "fd": steps, "offset": offset,
    }  # fmt: skip
    nothing = np.full(len(before), -1)
    made = {
        name: np.insert(column, before, new.get(name, nothing).astype(column.dtype))
        for name, column in {**columns, "think_ns": others}.items()
    }
    return replace(recording, columns=made)
