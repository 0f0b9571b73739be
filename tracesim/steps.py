"""The lengths of steps, as the job logs them, and the time that the main threads of its ranks wait for data.

A rank waits for the next batch of its loaders in poll, select or epoll. The framework decides how many such calls a batch takes,
so only the time in them counts.
"""

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import WAIT_OPS
from iotwin.tracesim.logbins import BINS, log_bin, table
from iotwin.tracesim.phases import Occurrences


class StepTimes:
    """Per occurrence: time in steps by length, `step_ns` (n, BINS), and the median length, `typical_step_ns` (n,).

    `wait_ns` (n,) is the mean waiting time of the main threads; 0 if they never wait.
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
        self.wait_ns = np.zeros(n)
        processes = trace.processes()
        ranks = processes.loc[processes["role"] == "rank", "pid"].dropna().astype(int).tolist()
        if not ranks or not any(trace.manifest.counts.get(op) for op in WAIT_OPS):
            return
        chosen = pc.field("op").isin(list(WAIT_OPS)) & pc.field("tid").isin(ranks)
        for batch in trace.events(["start_ns", "duration_ns"], where=chosen):
            start, duration = (batch.column(name).to_numpy().astype(np.int64) for name in ("start_ns", "duration_ns"))
            self.wait_ns += np.bincount(occurrences.at(start), weights=duration, minlength=n) / len(ranks)
