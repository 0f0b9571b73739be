"""The phases of a job that logged none, inferred from its batches and checkpoints, for pictures."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.batches.labels import label_calls
from iotwin.benchmark.fit.checkpoints.find_checkpoints import find_checkpoints
from iotwin.benchmark.fit.passes import Passes, find_passes
from iotwin.benchmark.fit.traced_job import Job, look
from iotwin.trace_store.reader import Trace

_Row = tuple[str, int, int, int]  # phase, start_ns, end_ns, epoch; 0: none


def inferred_phases(trace: Trace) -> pd.DataFrame:
    """Return init, the passes over the data set and the checkpoints, with the columns of `schema.PHASES`, in order of start.

    Raises IotwinError with the reason if the trace does not show batches.
    """
    job = look(trace)
    rows = list(_rows(job, find_passes(job, label_calls(job))))
    rows.append(("init", job.trace.manifest.start_ns, min(start for _, start, _, _ in rows), 0))
    phase, start_ns, end_ns, epoch = zip(*sorted(rows, key=lambda row: row[1]), strict=True)
    frame = pd.DataFrame({"phase": phase, "start_ns": start_ns, "end_ns": end_ns, "rank": 0, "epoch": epoch, "step": np.nan})
    return frame.assign(epoch=frame["epoch"].where(frame["epoch"] > 0))


def _rows(job: Job, passes: Passes) -> Iterator[_Row]:
    """Yield passes and checkpoints. A checkpoint after a pass's last batch ends the pass."""
    saved = find_checkpoints(job, passes.training).each
    spans = [(min(file.start_ns for file in each.files), max(file.end_ns for file in each.files), each.epoch) for each in saved]
    begins = [*(int(part.requested_ns[0]) for part in passes.each[1:]), job.trace.manifest.end_ns]
    for part, next_ns in zip(passes.each, begins, strict=True):
        last_ns, end_ns = int(part.taken_ns[-1]), int(part.computed_ns[-1])
        after = [start_ns for start_ns, _, _ in spans if last_ns <= start_ns < next_ns]
        phase = "epoch" if part.training else "evaluation"
        yield phase, int(part.requested_ns[0]), min([*after, max(last_ns, end_ns)]), part.epoch
    for start_ns, end_ns, epoch in spans:
        yield "checkpoint", start_ns, end_ns, epoch
