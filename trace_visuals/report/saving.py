"""Checkpoints written beside training, as a job logs them: how long they take, and what they cost its steps and its reads."""

import numpy as np

from trace_visuals.call_columns import READ, Calls, Ints
from trace_visuals.histogram import LogHistogram
from trace_visuals.requests import CHECKPOINT_PARTS
from trace_visuals.windows import leading_phases
from tracing_tools.trace.reader import Trace

APART, BESIDE = 0, 1  # rows of ReadsBeside.latency_ns


def written_ns(trace: Trace) -> Ints:
    """Return from when to when each checkpoint was written beside training, in order of start; shape (n, 2)."""
    parts = trace.step_parts()
    if parts is None:
        return np.empty((0, 2), dtype=np.int64)
    own = parts[parts["name"].astype(str) == "persist"].sort_values("start_ns")
    begin = own["start_ns"].to_numpy(np.int64)
    return np.stack([begin, begin + own["duration_ns"].to_numpy(np.int64)], axis=1)


def bursts_ns(trace: Trace) -> Ints:
    """Return from when to when each checkpoint was written: beside training, or else as the job logged it; shape (n, 2)."""
    beside = written_ns(trace)
    if len(beside):
        return beside
    phases = leading_phases(trace)
    own = phases[phases["phase"] == "checkpoint"].sort_values("start_ns")
    return np.stack([own["start_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)], axis=1)


def spent_s(trace: Trace) -> dict[str, float]:
    """Return the mean seconds of a rank in each of CHECKPOINT_PARTS; none where no checkpoint was logged."""
    parts = trace.step_parts()
    if parts is None:
        return {}
    own = parts[parts["name"].astype(str).isin(CHECKPOINT_PARTS)]
    seconds = own.groupby(own["name"].astype(str))["duration_ns"].sum() / 1e9 / max(own["rank"].fillna(0).nunique(), 1)
    return {str(name): float(value) for name, value in seconds.items()}


class ReadsBeside:
    """How long reads of storage take while a checkpoint is written (row BESIDE), and otherwise (row APART)."""

    def __init__(self, written: Ints) -> None:
        """Take the spans of `bursts_ns`."""
        self._begin, self._reach = written[:, 0], np.maximum.accumulate(written[:, 1])
        self.latency_ns = LogHistogram()

    def add(self, calls: Calls) -> None:
        """Add a batch."""
        reads = np.flatnonzero((calls.group == READ) & calls.storage)
        if not len(self._begin) or not len(reads):
            return
        last = np.searchsorted(self._begin, calls.start_ns[reads], side="right") - 1
        beside = (last >= 0) & (calls.start_ns[reads] < self._reach[np.maximum(last, 0)])
        self.latency_ns.add(np.where(beside, BESIDE, APART), calls.duration_ns[reads])

    def extend(self, later: "ReadsBeside") -> None:
        """Take in what was found in calls after these."""
        self.latency_ns.extend(later.latency_ns)
