"""The rhythm of a job's main thread: how long its steps are, and how long it waits for data.

A rank that loader processes feed asks for the next batch by a call that waits (poll, select, epoll); how many such calls a batch
takes is the framework's affair, so only the time in them counts. Steps are those that the job logs.
"""

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracesim.logbins import BINS, log_bin, table
from tracesim.phases import Occurrences
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import WAIT_OPS


class StepTimes:
    """Per occurrence: time in steps by their length, `step_ns` (n, BINS), and their median, `typical_step_ns` (n,).

    `wait_ns` (n,) is the main threads' waiting, `between_waits_ns` (n,) what typically lies between two waits; 0 where none is.
    """

    def __init__(self, trace: Trace, occurrences: Occurrences) -> None:
        n = occurrences.number
        phases = trace.phases()
        steps = phases[(phases["phase"] == "step") & phases["end_ns"].notna()]
        length = (steps["end_ns"] - steps["start_ns"]).to_numpy(np.int64)
        owner = occurrences.at(steps["start_ns"].to_numpy(np.int64))
        median = pd.Series(length).groupby(owner).median()
        self.typical_step_ns = median.reindex(range(n), fill_value=0).to_numpy(np.float64)
        self.step_ns = table(owner, log_bin(length), length, n, BINS)
        self.wait_ns, self.between_waits_ns = np.zeros(n), np.zeros(n)
        processes = trace.processes()
        ranks = processes.loc[processes["role"] == "rank", "pid"].dropna().astype(int).tolist()
        if not ranks or not any(trace.manifest.counts.get(op) for op in WAIT_OPS):
            return
        chosen = pc.field("op").isin(list(WAIT_OPS)) & pc.field("tid").isin(ranks)
        found = [np.empty((3, 0), dtype=np.int64)]  # rows: thread, start, end
        for batch in trace.events(["tid", "start_ns", "duration_ns"], where=chosen):
            tid, start, duration = (batch.column(name).to_numpy().astype(np.int64) for name in ("tid", "start_ns", "duration_ns"))
            self.wait_ns += np.bincount(occurrences.at(start), weights=duration, minlength=n) / len(ranks)
            found.append(np.stack([tid, start, start + duration]))
        thread, start, end = np.concatenate(found, axis=1)
        order = np.lexsort((start, thread))
        thread, start, end = thread[order], start[order], end[order]
        same = (thread[1:] == thread[:-1]) & (start[1:] > end[:-1])
        self.between_waits_ns = _typical(occurrences.at(end[:-1][same]), (start[1:] - end[:-1])[same], n)


def _typical(owner: NDArray[np.int64], length: NDArray[np.int64], n: int) -> NDArray[np.float64]:
    """Return for each of `n` owners the length that half of all time is in lengths of at least; 0 where there is none."""
    typical = np.zeros(n)
    order = np.lexsort((length, owner))
    owner, length = owner[order], length[order]
    for each in np.unique(owner):
        lengths = length[owner == each]
        time = np.cumsum(lengths)
        typical[each] = lengths[np.searchsorted(time, time[-1] / 2)]
    return typical
