"""Checkpoints that the job logs: when they were written, their cost for training, and the latency of reads at that time."""

import numpy as np

from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import READ, CallColumns, Ints
from iotwin.trace_visuals.histogram import LogHistogram
from iotwin.trace_visuals.requests import CHECKPOINT_PARTS
from iotwin.trace_visuals.windows import leading_phases

APART, DURING = 0, 1  # rows of ReadsDuringCheckpoints.latency_ns


def concurrent_writes_ns(trace: Trace) -> Ints:
    """Return begin and end (ns) of each checkpoint written concurrently with training, in order of start; shape (n, 2)."""
    parts = trace.step_parts()
    if parts is None:
        return np.empty((0, 2), dtype=np.int64)
    own = parts[parts["name"].astype(str) == "persist"].sort_values("start_ns")
    begin = own["start_ns"].to_numpy(np.int64)
    return np.stack([begin, begin + own["duration_ns"].to_numpy(np.int64)], axis=1)


def checkpoint_writes_ns(trace: Trace) -> Ints:
    """Return begin and end (ns) of checkpoints, shape (n, 2): of those written concurrently with training or, if none, of all."""
    concurrent = concurrent_writes_ns(trace)
    if len(concurrent):
        return concurrent
    phases = leading_phases(trace)
    own = phases[phases["phase"] == "checkpoint"].sort_values("start_ns")
    return np.stack([own["start_ns"].to_numpy(np.int64), own["end_ns"].to_numpy(np.int64)], axis=1)


def checkpoint_parts_s(trace: Trace) -> dict[str, float]:
    """Return the mean seconds that a rank spent in each of CHECKPOINT_PARTS; empty if no checkpoint was logged."""
    parts = trace.step_parts()
    if parts is None:
        return {}
    own = parts[parts["name"].astype(str).isin(CHECKPOINT_PARTS)]
    seconds = own.groupby(own["name"].astype(str))["duration_ns"].sum() / 1e9 / max(own["rank"].fillna(0).nunique(), 1)
    return {str(name): float(value) for name, value in seconds.items()}


class ReadsDuringCheckpoints:
    """Latencies of storage reads: while a checkpoint is written, in row DURING, and at other times, in row APART."""

    def __init__(self, written: Ints) -> None:
        """Measure reads during the checkpoints `written`, as `checkpoint_writes_ns` returns them."""
        self._begin, self._reach = written[:, 0], np.maximum.accumulate(written[:, 1])
        self.latency_ns = LogHistogram()

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls."""
        reads = np.flatnonzero((calls.group == READ) & calls.storage)
        if not len(self._begin) or not len(reads):
            return
        last = np.searchsorted(self._begin, calls.start_ns[reads], side="right") - 1
        during = (last >= 0) & (calls.start_ns[reads] < self._reach[np.maximum(last, 0)])
        self.latency_ns.add(np.where(during, DURING, APART), calls.duration_ns[reads])

    def later(self, other: "ReadsDuringCheckpoints") -> None:
        """Add the latencies of `other`."""
        self.latency_ns.later(other.latency_ns)
