"""Phases that the job logged: when evaluations were, and when epochs ended."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.traced_job import Job

_Ints = NDArray[np.int64]
NEVER_NS = 1 << 62


def logged_evaluations(job: Job) -> pd.DataFrame:
    """Return the evaluations that the job logged: start_ns, end_ns."""
    phases = job.phases[(job.phases["phase"].astype(str) == "evaluation") & job.phases["end_ns"].notna()]
    return phases[["start_ns", "end_ns"]].sort_values("start_ns").astype(np.int64)


def logged_end(job: Job, after_ns: int) -> int:
    """Return the first logged end of an epoch, block or evaluation after `after_ns`, or a time beyond all if there is none."""
    ends = job.phases.loc[job.phases["phase"].isin(["epoch", "block", "evaluation"]), "end_ns"]
    later = ends[ends > after_ns]
    return int(later.min()) if len(later) else NEVER_NS


def is_within(times_ns: _Ints, spans: pd.DataFrame) -> NDArray[np.bool_]:
    """Return which times lie in one of the `spans` (start_ns, end_ns; sorted, apart from one another)."""
    if spans.empty:
        return np.zeros(len(times_ns), np.bool_)
    last = np.searchsorted(spans["start_ns"].to_numpy(), times_ns, side="right") - 1
    inside: NDArray[np.bool_] = (last >= 0) & (times_ns <= spans["end_ns"].to_numpy()[last])
    return inside
