"""How much of the training time a job's ranks spend on writing checkpoints, and the number of steps between checkpoints."""

import numpy as np
from numpy.typing import NDArray

from iotwin.loops.answers.training_view import PassTimes, TrainingView
from iotwin.workload_yaml.recording import Op

_WRITES = (Op.WRITE, Op.COPY_TO, Op.SYNC, Op.DATASYNC)


def saving_share(view: TrainingView) -> float:
    """Return the share (0 to 1) of the ranks' time in training between the first and last write of a step's checkpoint."""
    spent = sum(int(saving_ns(view, each).sum()) for each in view.training)
    return spent / max(sum(each.duration_ns for each in view.training), 1)


def saving_ns(view: TrainingView, one: PassTimes) -> NDArray[np.int64]:
    """Return how long the rank's main thread wrote checkpoints in each step of a pass, in ns: from first to last call."""
    recording = view.recording
    columns, header = recording.columns, recording.header
    thread = int(np.searchsorted(header.threads, one.process))
    begin, end = recording.starts()[thread : thread + 2].tolist()
    op, subject = columns["op"][begin:end], columns["subject"][begin:end]
    written = np.array([file.written for file in header.files] or [False])
    saves = np.flatnonzero(np.isin(op, _WRITES) & written[np.where(op < Op.PIPE_WRITE, subject, 0)])
    at_ns = columns["at_ns"][begin:end] + view.trace.manifest.start_ns
    think_ns = columns["think_ns"][begin:end]
    ends = np.append((at_ns[1:] - think_ns[1:]), at_ns[-1:])[saves]  # the next call begins a time of thinking after the write
    saves_at = at_ns[saves]
    step = np.searchsorted(one.taken, saves_at, side="right") - 1
    inside = (step >= 0) & (saves_at < one.computed[-1])
    found = np.zeros(len(one.taken), np.int64)
    for number in np.unique(step[inside]):
        own = inside & (step == number)
        found[number] = max(int(ends[own].max() - saves_at[own].min()), 0)
    return found


def steps_between_saves(view: TrainingView) -> int | None:
    """Return the usual number of steps between two checkpoints within a pass; None if no pass has two."""
    gaps = [np.diff(np.flatnonzero(saving_ns(view, each) > 0)) for each in view.training]
    every = np.concatenate(gaps) if gaps else np.zeros(0, np.int64)
    return int(np.median(every)) if len(every) else None
