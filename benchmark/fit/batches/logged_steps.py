"""The batches of a job that logs its steps, if nothing else shows when its rank took which batch.

A rank without loaders may read its batches by threads, or through memory maps, whose pages cause no fault once they are in
memory. Then its calls come in no bursts, but the steps that it logs show when it had a batch, and when it wanted the next one.
"""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.logged_phases import is_within, logged_evaluations
from iotwin.benchmark.fit.look import Job
from iotwin.trace_store import schema

_Ints = NDArray[np.int64]
_ENOUGH = 0.5  # share of the bytes read of the data set that must be read for steps


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


def batches_of_steps(job: Job, calls: pd.DataFrame) -> _Ints:
    """Return by call on the data set the index of the logged step that it reads for, -1 if none or if few bytes are read for any.

    The rank's main thread reads for the batch that it waits for. Its other threads read ahead, at the pace at which it takes
    batches: what they read between two steps' begins counts for the later one.
    """
    steps = logged_steps(job)
    if steps.empty:
        return np.full(len(calls), -1, np.int64)
    at_ns = calls["start_ns"].to_numpy(np.int64)
    own = (calls["pid"] == steps["pid"].iloc[0]).to_numpy()
    main = (calls["tid"] == calls["pid"]).to_numpy()
    start_ns, wanted_ns = steps["start_ns"].to_numpy(np.int64), steps["wanted_ns"].to_numpy(np.int64)
    step = np.searchsorted(start_ns, at_ns, side="right")  # the first one that begins later
    first = steps["pass"].diff().ne(0).to_numpy()
    since_ns = np.where(first, wanted_ns, np.append(0, start_ns[:-1]))  # when other threads may read for the step
    last = len(steps) - 1
    earliest_ns = np.where(main, wanted_ns[np.minimum(step, last)], since_ns[np.minimum(step, last)])
    batch = np.where(own & (step <= last) & (at_ns >= earliest_ns), step, -1)
    reads = (calls["op"].isin(schema.READ_OPS) & (calls["result"] > 0)).to_numpy()
    read_bytes = calls["result"].to_numpy(np.int64)
    is_enough = read_bytes[reads & (batch >= 0)].sum() > _ENOUGH * read_bytes[reads].sum()
    return batch if is_enough else np.full(len(calls), -1, np.int64)
