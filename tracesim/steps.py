"""The rhythm of a job's main thread: how long its steps are and how much of them it waits for data.

A rank that loader processes feed asks for the next batch by a call that waits (poll, select, epoll). Between two such waits it
computes. A step runs from the end of one wait to the end of the next.
"""

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracesim.cadence import SHORTEST_PAUSE_NS
from tracesim.logbins import BINS, log_bin, table
from tracesim.phases import Occurrences
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import WAIT_OPS


class StepTimes:
    """Per occurrence: time in steps by the step's length, `step_ns` (n, BINS), and of that in waiting, `wait_ns` (n,)."""

    def __init__(self, trace: Trace, occurrences: Occurrences) -> None:
        n = occurrences.number
        self.step_ns, self.wait_ns = np.zeros((n, BINS)), np.zeros(n)
        for waits in _waits_by_rank(trace):
            begin, end = _joined(waits)
            occurrence = occurrences.at(begin)
            period = np.diff(end)
            inside = occurrence[1:] == occurrence[:-1]
            owner, period = occurrence[1:][inside], period[inside]
            self.step_ns += table(owner, log_bin(period), period, n, BINS)
            self.wait_ns += np.bincount(owner, weights=(end - begin)[1:][inside], minlength=n)


def _waits_by_rank(trace: Trace) -> list[pd.DataFrame]:
    """Return the waiting calls of each rank's main thread, start_ns and end_ns, in order of start; none when none was traced."""
    processes = trace.processes()
    ranks = processes.loc[processes["role"] == "rank", "pid"].dropna().astype(int).tolist()
    if not ranks or not any(trace.manifest.counts.get(op) for op in WAIT_OPS):
        return []
    chosen = pc.field("op").isin(list(WAIT_OPS)) & pc.field("tid").isin(ranks)
    waits = trace.events_frame(["start_ns", "duration_ns", "tid"], where=chosen)
    waits["end_ns"] = waits["start_ns"] + waits["duration_ns"]
    return [group for _, group in waits.groupby("tid") if len(group) > 1]


def _joined(waits: pd.DataFrame) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return begin and end of each wait; calls closer than a pause are one wait for one batch."""
    start, end = waits["start_ns"].to_numpy(np.int64), waits["end_ns"].to_numpy(np.int64)
    first = np.concatenate(([True], start[1:] - end[:-1] >= SHORTEST_PAUSE_NS))
    last = np.concatenate((first[1:], [True]))
    return start[first], end[last]
