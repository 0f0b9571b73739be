"""The batches of a job that logs its steps, if nothing else shows when its rank took which batch.

A rank without loaders may read its batches by threads, or through memory maps, whose pages cause no fault once they are in
memory. Then its calls form no bursts. But the steps that it logs show when it had a batch, and when it wanted the next one.
"""

import numpy as np
import pandas as pd

from iotwin.benchmark.fit.logged_phases import is_within, logged_evaluations
from iotwin.benchmark.fit.traced_job import Job


def logged_steps(job: Job) -> pd.DataFrame:
    """Return the training steps that the job's only rank logged, in order of time; none if it has several ranks.

    Columns: `pid`, `pass` (index of the logged epoch or block that the step is in), `wanted_ns` (when the rank wanted the step's
    batch), `start_ns` and `end_ns`.
    """
    ranks = job.processes.loc[job.processes["role"] == "rank", "pid"].astype(int).tolist()
    phases = job.phases[job.phases["end_ns"].notna()].sort_values("start_ns", kind="stable")
    steps, passes = (
        phases.loc[phases["phase"].isin(names), ["start_ns", "end_ns"]].astype(np.int64)
        for names in (["step"], ["epoch", "block"])
    )
    steps = steps[~is_within(steps["start_ns"].to_numpy(), logged_evaluations(job))]
    if len(ranks) != 1 or job.phases["rank"].nunique() > 1 or steps.empty:
        return pd.DataFrame(columns=["pid", "pass", "wanted_ns", "start_ns", "end_ns"], dtype=np.int64)
    begins = passes["start_ns"].to_numpy(np.int64)
    start_ns = steps["start_ns"].to_numpy(np.int64)
    number = np.searchsorted(begins, start_ns, side="right") - 1
    first = np.append(True, np.diff(number) != 0)
    begun = np.where(number >= 0, np.append(begins, 0)[number], start_ns)
    before = np.append(0, steps["end_ns"].to_numpy(np.int64)[:-1])
    wanted_ns = np.minimum(np.where(first, begun, before), start_ns)
    return steps.assign(pid=ranks[0], wanted_ns=wanted_ns, **{"pass": number - number[0]}).reset_index(drop=True)
