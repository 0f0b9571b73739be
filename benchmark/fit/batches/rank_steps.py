"""The batches that a rank took for its steps, if only the steps show when it took each batch."""

from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.logged_steps import logged_steps
from iotwin.benchmark.fit.batches.paced_steps import paced_steps
from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema

_Ints = NDArray[np.int64]
_ENOUGH = 0.5  # least share of the data set's bytes read that must be read for steps


class RankSteps(NamedTuple):
    """The steps of a job's only rank."""

    each: pd.DataFrame  # columns as of `logged_steps`; empty if the steps are unknown
    paced: bool  # inferred from pauses between reads


def known_steps(job: Job) -> RankSteps:
    """Return the steps that the job logged, or those that the pauses between its reads show."""
    logged = logged_steps(job)
    return RankSteps(paced_steps(job), True) if logged.empty else RankSteps(logged, False)


def batches_of_steps(steps: pd.DataFrame, calls: pd.DataFrame) -> _Ints:
    """Return, by call on the data set, the index of the step for which it reads; -1 if none, or if steps explain few bytes.

    The rank's main thread reads for the batch that it waits for. Its other threads read ahead as fast as it takes batches. So
    their reads between the begins of two steps belong to the later step.
    """
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
