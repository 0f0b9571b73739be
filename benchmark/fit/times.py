"""How long a traced job computed and preprocessed: the times between what it did to files and pipes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.benchmark.fit.batches.deliveries import LENGTH_BYTES, are_ends
from iotwin.benchmark.fit.checkpoint_files import saved_ns
from iotwin.benchmark.fit.look import Job
from iotwin.benchmark.fit.passes import Pass
from iotwin.trace_store import schema
from iotwin.workload_yaml import Duration, InOrder, Quantiles

_QUANTILES = 21
_LEAST_STEPS = 4  # of a pass whose times have an order
_EVEN = 0.1  # times that deviate by less than this share of their mean need no order
_BY_CHANCE = 0.2  # at most this share of the variance of times in order is among those of the same step
_EPOCH_WARM_UP = 1.2  # first steps of epochs are usually this many times longer than the others to be so by more than chance
_WARM_UP = 1.5  # a first value this many times longer than the 95th percentile of the later ones is warm-up


@dataclass
class Times:
    """Seconds, one value per step (compute) or sample (preprocess)."""

    compute_s: NDArray[np.float64]
    preprocess_s: NDArray[np.float64]
    begins_ns: NDArray[np.int64]  # when each computation began: its batch was there
    waits_unseen: bool = False


def quantiles(values_s: NDArray[np.float64]) -> Duration:
    """Return the empirical distribution of `values_s` as equally spaced quantiles; a number when all are alike."""
    if len(values_s) == 0:
        return 0.0
    if np.ptp(values_s) < 1e-6:
        return round(float(values_s[0]), 6)
    # With few values more quantiles than values would tell nothing new.
    values = np.quantile(values_s, np.linspace(0, 1, min(_QUANTILES, len(values_s))))
    if len(values_s) > _QUANTILES:
        # Between the last two quantiles draws are even: one long value among thousands must not make all of them long.
        longest = np.sort(values_s)[-max(len(values_s) // (_QUANTILES - 1), 1) :]
        values[-1] = max(2 * longest.mean() - values[-2], values[-2])
    return Quantiles(values=[round(max(float(value), 0.0), 6) for value in values])


def by_step(passes_s: Sequence[NDArray[np.float64]], steps: int) -> Duration:
    """Return the times of the steps of several passes: in order, where each pass takes as long for the same step; else drawn.

    So evaluations do whose samples come in the same order each time. `steps`: of a pass; the time of the last may not be known.
    """
    values_s = np.concatenate(passes_s)
    if len(passes_s) < 2 or steps < _LEAST_STEPS or any(len(each) not in (steps - 1, steps) for each in passes_s):
        return quantiles(values_s)
    known = min(map(len, passes_s))
    by_pass = np.stack([each[:known] for each in passes_s])
    chance, spread = by_pass.var(axis=0, ddof=1).mean(), by_pass.var()
    if spread < (_EVEN * by_pass.mean()) ** 2 or chance > _BY_CHANCE * spread:
        return quantiles(values_s)
    rest_s = [np.median(values_s)] * (steps - known)
    return InOrder([round(float(value), 6) for value in (*np.median(by_pass, axis=0), *rest_s)])


def warm_up(values_s: NDArray[np.float64]) -> tuple[float | None, NDArray[np.float64]]:
    """Return the first value, if it is unlike the later ones (a framework compiles, or starts threads), and the others."""
    later = values_s[1:]
    if len(later) and values_s[0] > _WARM_UP * np.quantile(later, 0.95):
        return round(float(values_s[0]), 6), later
    return None, values_s


def pass_times(job: Job, passes: Sequence[Pass]) -> Times:
    """Return the times of the passes together."""
    if not passes:
        return Times(np.zeros(0), np.zeros(0), np.zeros(0, np.int64))
    preprocess = np.concatenate([_preprocess_s(job, part) for part in passes])
    computed = [_compute_s(job, part) for part in passes]
    seconds, begins_ns = (np.concatenate(column) for column in zip(*((own[0], own[1]) for own in computed), strict=True))
    return Times(seconds, preprocess, begins_ns, any(unseen for _, _, unseen in computed))


def apart_from_first(times: Times) -> tuple[float | None, Times]:
    """Return the seconds of the very first step, if it is warm-up, and the times of the others."""
    first_s, rest_s = (None, times.compute_s) if times.waits_unseen else warm_up(times.compute_s)
    return first_s, times if first_s is None else replace(times, compute_s=rest_s, begins_ns=times.begins_ns[1:])


def epoch_warm_up(times: Times, passes: Sequence[Pass]) -> tuple[Duration, Times]:
    """Return the seconds that the first step of an epoch takes longer than others, 0.0 if by chance, and the others' times."""
    first = np.searchsorted(times.begins_ns, [part.start_ns for part in passes])
    first = np.unique(first[first < len(times.begins_ns)])
    others = np.delete(np.arange(len(times.begins_ns)), first)
    if len(first) < 2 or not len(others) or times.waits_unseen or (np.diff(times.begins_ns) < 0).any():
        return 0.0, times
    first_s, others_s = times.compute_s[first], times.compute_s[others]
    usual_s = float(np.median(others_s))
    least_s, most_s = np.quantile(first_s, 0.1, method="lower"), np.quantile(others_s, 0.95)
    if least_s <= most_s or np.median(first_s) <= _EPOCH_WARM_UP * usual_s:
        return 0.0, times
    rest = replace(times, compute_s=others_s, begins_ns=times.begins_ns[others])
    return quantiles(first_s - usual_s), rest


def start_time(job: Job, passes: Sequence[Pass]) -> Duration:
    """Return the seconds from the start of a pass that starts its loaders until their first read; 0.0 if none does."""
    begun_ns = job.processes.set_index("pid")["start_ns"].to_dict()
    started = [part for part in passes if part.pids and begun_ns[part.pids[0]] >= part.start_ns]
    return quantiles(np.array([part.accesses["start_ns"].min() - part.start_ns for part in started]) / 1e9)


def taken_ns(job: Job, part: Pass) -> NDArray[np.int64]:
    """Return when the rank had each batch of the pass, ascending: when it came through its loaders' pipes, or was read."""
    if part.workers:
        arrivals = _arrivals_ns(_calls(job, (part.rank, *part.pids), part.start_ns, part.end_ns), part)
        if len(arrivals):
            return np.sort(arrivals)
    return np.sort(part.batches["end_ns"].to_numpy(np.int64))


@dataclass
class _Calls:
    """The calls of some processes in a span of time, one array a column, in order of start."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    pid: NDArray[np.int64]
    file_id: NDArray[np.int64]  # -1: none
    result: NDArray[np.int64]
    by_main_thread: NDArray[np.bool_]
    on_pipe: NDArray[np.bool_]
    reads: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    waits: NDArray[np.bool_]


def _calls(job: Job, pids: Sequence[int], start_ns: int, end_ns: int) -> _Calls:
    calls = job.calls
    chosen = calls["pid"].isin(pids) & (calls["start_ns"] >= start_ns) & (calls["start_ns"] <= end_ns)
    frame = calls[chosen]
    is_pipe = np.append((job.files["kind"] == "pipe").to_numpy(np.bool_), False)  # the last one stands for no file
    ids = frame["file_id"].to_numpy()
    return _Calls(
        start_ns=frame["start_ns"].to_numpy(np.int64),
        end_ns=frame["end_ns"].to_numpy(np.int64),
        pid=frame["pid"].to_numpy(np.int64),
        file_id=ids,
        result=frame["result"].to_numpy(np.int64),
        by_main_thread=(frame["pid"] == frame["tid"]).to_numpy(np.bool_),
        on_pipe=is_pipe[ids],
        reads=(frame["op"].isin(schema.READ_OPS) & (frame["result"] > 0)).to_numpy(np.bool_),
        writes=frame["op"].isin(schema.WRITE_OPS).to_numpy(np.bool_),
        waits=frame["op"].isin(schema.WAIT_OPS).to_numpy(np.bool_),
    )


def _preprocess_s(job: Job, part: Pass) -> NDArray[np.float64]:
    """Idle time within a sample, and from its last read to whatever its process did next: the next sample, or the hand-over."""
    accesses = part.accesses.sort_values(["pid", "start_ns"], kind="stable")
    ends, pids, idle = (accesses[name].to_numpy() for name in ("end_ns", "pid", "idle_ns"))
    same_batch = accesses["batch"].to_numpy()[1:] == accesses["batch"].to_numpy()[:-1]
    within = (accesses["start_ns"].to_numpy()[1:] - ends[:-1] + idle[:-1])[same_batch]
    if not part.workers:
        # After a batch's last sample a rank goes on to compute; where that is the only one, there is the time within it.
        return _seconds(idle if idle.any() and not len(within) else within)
    calls = _calls(job, part.pids, part.start_ns, part.end_ns)
    last = np.append(~same_batch, True)
    after = []
    for pid in part.pids:
        starts = calls.start_ns[calls.pid == pid]
        own = last & (pids == pid)
        following = np.searchsorted(starts, ends[own])
        known = following < len(starts)
        after.append(starts[following[known]] - ends[own][known] + idle[own][known])
    return _seconds(np.concatenate([within, *after]))


def _seconds(durations_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = np.maximum(durations_ns, 0) / 1e9
    return seconds


def _compute_s(job: Job, part: Pass) -> tuple[NDArray[np.float64], NDArray[np.int64], bool]:
    """Seconds of computation of each step, when it began, and whether waits for data could not be told apart from it.

    A step runs from the end of the read that completed its batch to when the rank next asks for one. Several steps run between
    two asks when a late batch was the only one missing; they share the time equally.
    """
    if not part.workers:
        starts = np.append(part.batches["start_ns"].to_numpy(), [part.end_ns] if part.logged else [])
        ends = part.batches["end_ns"].to_numpy()[: len(starts) - 1]
        # The pause after a batch begins with preprocessing its last sample.
        preprocess = _preprocess_s(job, part) if max(part.batch_sizes) > 1 else np.zeros(0)
        pauses_s = _seconds((starts[1:] - ends - saved_ns(part.saved, part.rank, ends, starts[1:])).astype(np.int64))
        return np.maximum(pauses_s - (np.median(preprocess) if len(preprocess) else 0.0), 0), ends, False
    calls = _calls(job, (part.rank, *part.pids), part.start_ns, part.end_ns)
    ready_ns = np.maximum.accumulate(_arrivals_ns(calls, part))
    by_rank = (calls.pid == part.rank) & calls.by_main_thread
    # A rank that polls reads several batches after one poll; one that does not asks by reading.
    asks = by_rank & (calls.waits if (by_rank & calls.waits).any() else calls.reads & calls.on_pipe)
    if not asks.any():
        return _seconds(np.diff(ready_ns)), ready_ns[:-1], True
    asked_ns = np.append(calls.start_ns[asks], part.end_ns)
    ask, first, steps = np.unique(np.searchsorted(asked_ns[:-1], ready_ns), return_index=True, return_counts=True)
    busy_ns = asked_ns[ask] - ready_ns[first] - saved_ns(part.saved, part.rank, ready_ns[first], asked_ns[ask])
    busy_s = np.repeat(_seconds(busy_ns) / steps, steps)
    # Without a log nothing says where the last step ended.
    known = len(busy_s) if part.logged else len(busy_s) - 1
    return busy_s[:known], ready_ns[:known], False


def _arrivals_ns(calls: _Calls, part: Pass) -> NDArray[np.int64]:
    """When the rank had read each batch whole, in the order it takes them.

    A pipe keeps the order of bytes, so the read that completed a message is found by counting the bytes before it.
    """
    given = calls.on_pipe & calls.writes & np.isin(calls.pid, part.pids)
    loaders, arrivals = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for pipe in np.unique(calls.file_id[given]).tolist():
        writes = np.flatnonzero(given & (calls.file_id == pipe))
        reads = np.flatnonzero((calls.pid == part.rank) & calls.reads & (calls.file_id == pipe))
        whole = ~_announces_another(calls, writes)
        read = np.searchsorted(np.cumsum(calls.result[reads]), np.cumsum(calls.result[writes])[whole])
        taken = (read < len(reads)) & _are_batches(calls, writes[whole], part)
        loaders.append(calls.pid[writes[whole]][taken])
        arrivals.append(calls.end_ns[reads[read[taken]]])
    return _in_turn(np.concatenate(loaders), np.concatenate(arrivals), part.pids)


def _are_batches(calls: _Calls, writes: NDArray[np.int64], part: Pass) -> NDArray[np.bool_]:
    """Which messages are batches: a loader that is kept for a new epoch answers before its first read in it."""
    loaders, given_ns, batches = calls.pid[writes], calls.start_ns[writes], np.zeros(len(writes), np.bool_)
    more = ~are_ends(pd.DataFrame({"pid": loaders, "result": calls.result[writes]}))
    for pid, accesses in part.accesses.groupby("pid"):
        own = np.flatnonzero((loaders == pid) & more & (given_ns > accesses["start_ns"].min()))
        batches[own[: accesses["batch"].nunique()]] = True
    return batches


def _in_turn(loaders: NDArray[np.int64], arrivals_ns: NDArray[np.int64], order: Sequence[int]) -> NDArray[np.int64]:
    """Order arrivals as the rank takes them: the i-th of each loader in turn, loaders in the order they were started."""
    of_loader = [np.sort(arrivals_ns[loaders == pid]) for pid in order]
    number = np.concatenate([np.arange(len(own)) * len(order) + turn for turn, own in enumerate(of_loader)])
    taken: NDArray[np.int64] = np.concatenate(of_loader)[np.argsort(number, kind="stable")]
    return taken


def _announces_another(calls: _Calls, writes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each write is only the length of the next one, as multiprocessing.connection sends large messages."""
    alone: NDArray[np.bool_] = calls.result[writes] == LENGTH_BYTES
    alone[-1:] = False
    return alone
