"""The phases of a job that logged none, inferred from which process read and wrote what, for pictures."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.checkpoints import find_checkpoints
from iotwin.benchmark.fit.look import Job, look
from iotwin.benchmark.fit.passes import find_passes
from iotwin.benchmark.fit.refusal import check_is_training
from iotwin.benchmark.fit.samples.find_samples import find_samples
from iotwin.benchmark.fit.streams.stream import find_stream
from iotwin.benchmark.fit.times import taken_ns
from iotwin.common.errors import IotwinError
from iotwin.trace_store.reader import Trace

_Row = tuple[str, int, int, int]  # phase, start_ns, end_ns, epoch; 0: none


def inferred_phases(trace: Trace) -> pd.DataFrame:
    """Return init, the passes over the data set and the checkpoints, with the columns of `schema.PHASES`, in order of start.

    Raises IotwinError, saying why, where the trace shows no training.
    """
    job = look(trace)
    stream = find_stream(job)
    if stream is None:
        rows = list(_of_samples(job))
    else:
        windows = [*stream.training, *stream.evaluations]
        rows = [(window.phase, window.start_ns, window.end_ns, window.epoch) for window in windows]
    rows.append(("init", job.manifest.start_ns, min(start for _, start, _, _ in rows), 0))
    phase, start_ns, end_ns, epoch = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
    frame = pd.DataFrame({"phase": phase, "start_ns": start_ns, "end_ns": end_ns, "rank": 0, "epoch": epoch, "step": np.nan})
    return frame.assign(epoch=frame["epoch"].where(frame["epoch"] > 0))


def _of_samples(job: Job) -> Iterator[_Row]:
    """Passes and checkpoints of a job that reads sample by sample; a checkpoint after a pass's last batch ends the pass."""
    passes = find_passes(job, find_samples(job))
    training = [part for part in passes if part.phase != "evaluation"]
    if not training:
        raise IotwinError(f"{job.path}: no training epoch reads the data set")
    check_is_training(job, training)
    saved = find_checkpoints(job, training).each
    spans = [(min(file.start_ns for file in each.files), max(file.end_ns for file in each.files), each.epoch) for each in saved]
    begins = [*(part.start_ns for part in passes[1:]), job.manifest.end_ns]
    for part, next_ns in zip(passes, begins, strict=True):
        last_ns = int(taken_ns(job, part)[-1])
        saved_after = [start_ns for start_ns, _, _ in spans if last_ns <= start_ns < next_ns]
        yield part.phase, part.start_ns, min(saved_after, default=max(last_ns, part.end_ns)), part.epoch
    for start_ns, end_ns, epoch in spans:
        yield "checkpoint", start_ns, end_ns, epoch
