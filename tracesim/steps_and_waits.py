"""Measures the lengths of training steps, by the job's log, and the time that the main threads of its ranks wait for data.

A rank waits for the next batch in poll, select or epoll calls. The framework decides how many calls it makes per batch, so
only the total time of these calls is compared.
"""

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import WAIT_OPS
from iotwin.tracesim.logbins import BINS, log_bin, table
from iotwin.tracesim.phases import Occurrences


class StepTimes:
    """Step and waiting times of each of the n phase occurrences.

    * `step_ns`, shape (n, BINS): time in steps, by length of the step.
    * `typical_step_ns`, (n,): median length of a step.
    * `wait_ns`, (n,): time that a rank's main thread waits for data; mean over the ranks.
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
