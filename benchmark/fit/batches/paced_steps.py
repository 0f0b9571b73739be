"""The steps of a rank that logs none, inferred from the pauses between the reads of its other threads.

Threads that read ahead, as those of tf.data do, stop when their buffers are full, and continue when the rank takes a batch. So
if steps take equally long, the times between the threads' bursts of reads are multiples of the time of a step.
"""

from itertools import pairwise

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.repeated_regions import numbers_of_repeats, regions_of
from iotwin.benchmark.fit.traced_job import Job
from iotwin.trace_store import schema

_Ints = NDArray[np.int64]
_Floats = NDArray[np.float64]
STEP_COLUMNS = ["pid", "pass", "wanted_ns", "start_ns", "end_ns"]
_MOST_STEPS = 64  # most steps between two bursts; step times vary too much to count more
_ENOUGH = 256  # most pauses that are tried, chosen evenly, since the time grows with the square of their number
_FEWEST = 9  # least number of pauses; fewer pauses are multiples of some time by chance
# Between bursts, no thread reads for this share of the time; the rest belongs to the bursts.
_IDLE = 0.9
_AS_LONG = 0.2  # a shorter pause also separates bursts if it is at least this share of the shortest such pause
# The distance of a pause to the nearest multiple of an unrelated time, as a share of that time, is uniform from -1/2 to 1/2.
_CHANCE, _CHANCE_SPREAD = 1 / 4, 1 / np.sqrt(48)  # mean and standard deviation of its absolute value
_CERTAIN = 5.0  # the mean must be this many standard errors below chance; a few thousand tries do not reach this by chance


def paced_steps(job: Job) -> pd.DataFrame:
    """Return the steps of the job's only rank, in order of time, with the columns of `logged_steps`.

    Returns no steps if the rank's other threads read little ahead, or if the pauses between their reads show none. A step lasts
    until the next one begins, since it is unknown how long the rank waited for its batch.
    """
    ranks = job.processes.loc[job.processes["role"] == "rank"]
    none = pd.DataFrame(columns=STEP_COLUMNS, dtype=np.int64)
    if len(ranks) != 1 or job.is_mapped():
        return none
    pid = int(ranks["pid"].iloc[0])
    calls = job.calls[(job.calls["pid"] == pid) & (job.calls["result"] >= 0)]
    ahead = calls[(calls["tid"] != pid) & calls["file_id"].isin(job.file_ids("dataset"))]
    saving = calls[(calls["tid"] == pid) & calls["file_id"].isin(job.file_ids("checkpoint"))]
    bursts, clock = _bursts(ahead), _WorkClock(saving)
    if len(bursts) <= _FEWEST:
        return none
    begins = clock.readings(bursts["start_ns"].to_numpy(np.int64))
    step_ns = time_of_a_step(np.diff(begins)[1:])  # the first burst fills the buffers, before any step
    last_ns = _end_of_training(bursts, saving, int(ranks["exit_ns"].fillna(calls["end_ns"].max()).iloc[0]))
    if not step_ns or last_ns - begins[0] > _MOST_STEPS * len(bursts) * step_ns:
        return none
    passes = [own for _, own in bursts.groupby(numbers_of_repeats(bursts["regions"].tolist()))]
    wanted_ns = [int(ahead["start_ns"].min()), *(_begin_of_pass(ahead, *each) for each in pairwise(passes))]
    return pd.concat([
        _steps_of_pass(own, clock, step_ns, begun, next_ns).assign(**{"pass": number, "pid": pid})
        for number, (own, (begun, next_ns)) in enumerate(zip(passes, pairwise([*wanted_ns, last_ns]), strict=True))
    ])[STEP_COLUMNS].reset_index(drop=True)  # fmt: skip


def _end_of_training(bursts: pd.DataFrame, saving: pd.DataFrame, ended_ns: int) -> int:
    """Return when the last step ended: with the last checkpoint that was written after all reads, else with the process."""
    read_ns, saved_ns = int(bursts["end_ns"].max()), int(saving["end_ns"].max()) if len(saving) else 0
    return saved_ns if saved_ns > read_ns else max(ended_ns, read_ns + 1)


def _bursts(ahead: pd.DataFrame) -> pd.DataFrame:
    """Return the bursts of reads among the calls: start_ns, end_ns, and the `regions` of files that they read."""
    reads = ahead[ahead["op"].isin(schema.READ_OPS) & (ahead["result"] > 0)].sort_values("start_ns", kind="stable")
    ends = np.maximum.accumulate(reads["end_ns"].to_numpy(np.int64))
    idle = np.maximum(reads["start_ns"].to_numpy(np.int64)[1:] - ends[:-1], 0)
    longest = np.sort(idle)[::-1]
    least = longest[np.searchsorted(np.cumsum(longest), _IDLE * longest.sum())] if longest.any() else 1
    burst = np.append(0, np.cumsum(idle >= _AS_LONG * least))[: len(reads)]
    by_burst = reads.assign(region=regions_of(reads)).groupby(burst)
    return by_burst.agg(start_ns=("start_ns", "min"), end_ns=("end_ns", "max"), regions=("region", set))


def time_of_a_step(pauses: _Floats) -> float:
    """Return the time (ns) of which all `pauses` (ns) are nearly multiples; 0 if there is none, or if chance may explain it."""
    pauses = pauses[pauses > 0]
    if len(pauses) < _FEWEST:
        return 0.0
    pauses = pauses[np.unique(np.linspace(0, len(pauses) - 1, _ENOUGH).astype(np.int64))]
    # descending, so that the longest of equally good times is chosen
    tried = np.unique(pauses / np.arange(1, _MOST_STEPS + 1)[:, None])[::-1]
    counts = np.maximum(np.rint(pauses / tried[:, None]), 1)
    apart = np.abs(pauses / tried[:, None] - counts).mean(axis=1)
    best = int(apart.round(9).argmin())
    if apart[best] > _CHANCE - _CERTAIN * _CHANCE_SPREAD / np.sqrt(len(pauses)):
        return 0.0
    return float(pauses @ counts[best] / (counts[best] @ counts[best]))  # least squares


def _begin_of_pass(ahead: pd.DataFrame, before: pd.DataFrame, own: pd.DataFrame) -> int:
    """Return when threads began to read for a pass: with its first read or, if they opened a file for it before, with this."""
    since_ns, first_ns = int(before["end_ns"].iloc[-1]), int(own["start_ns"].iloc[0])
    opened = ahead[ahead["op"].isin(schema.OPEN_OPS) & ahead["start_ns"].between(since_ns, first_ns)]
    return int(opened["start_ns"].min()) if len(opened) else first_ns


def _steps_of_pass(bursts: pd.DataFrame, clock: "_WorkClock", step_ns: float, begun_ns: int, end_ns: int) -> pd.DataFrame:
    """Return the steps of a pass. Threads began to read for it at `begun_ns`, and its last step ends at `end_ns`.

    Each burst but the first begins with a step. Between the begins of two bursts, steps take equally long, about `step_ns`.
    """
    filled, end = clock.readings(np.array([bursts["end_ns"].iloc[0], end_ns]))
    begins = clock.readings(bursts["start_ns"].to_numpy(np.int64))[1:] if len(bursts) > 1 else np.array([filled])
    before = max(round((begins[0] - filled) / step_ns), 0)  # steps that begin when buffers are full, and make no thread read
    between = np.maximum(np.rint(np.diff(begins) / step_ns), 1)
    after = max(round((end - begins[-1]) / step_ns), 1)
    count = np.cumsum([0, before, *between, after])
    bounds = np.interp(np.arange(count[-1] + 1), count, [max(begins[0] - before * step_ns, filled), *begins, end])
    starts_ns = clock.times(bounds[:-1])
    ends_ns = np.append(starts_ns[1:], end_ns)
    return pd.DataFrame({"wanted_ns": np.append(begun_ns, starts_ns[1:]), "start_ns": starts_ns, "end_ns": ends_ns})


class _WorkClock:
    """A clock that stops while the main thread makes the `calls`, such as writes of a checkpoint."""

    def __init__(self, calls: pd.DataFrame) -> None:
        spans = calls[["start_ns", "end_ns"]].to_numpy(np.int64)
        self._times = np.maximum.accumulate(spans.ravel())
        self._stopped = np.repeat(np.cumsum(spans[:, 1] - spans[:, 0]), 2)
        self._stopped[::2] = np.append(0, self._stopped[1:-1:2])[: len(spans)]

    def readings(self, times: _Ints) -> _Floats:
        """Return what the clock shows at `times`, ns."""
        if not len(self._times):
            return times.astype(np.float64)
        found: _Floats = times - np.interp(times, self._times, self._stopped)
        return found

    def times(self, readings: _Floats) -> _Ints:
        """Return the first times at which the clock shows `readings`, ns."""
        if not len(self._times):
            return readings.astype(np.int64)
        index = np.searchsorted(self._times[::2] - self._stopped[::2], readings)
        found: _Ints = (readings + np.append(0, self._stopped[1::2])[index]).astype(np.int64)
        return found
