"""How long a traced job computed and preprocessed: the times between what it did to files and pipes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pyarrow import compute as pc

from benchmark.config import Duration, Quantiles
from benchmark.fit_passes import Pass
from tracing_tools.trace import schema
from tracing_tools.trace.reader import Trace

_QUANTILES = 21
_SUCCESSION_NS = 500_000


@dataclass
class Times:
    """Seconds, one value per step (compute) or sample (preprocess)."""

    compute_s: NDArray[np.float64]
    preprocess_s: NDArray[np.float64]
    waits_unseen: bool = False


def quantiles(values_s: NDArray[np.float64]) -> Duration:
    """Return the empirical distribution of `values_s` as equally spaced quantiles; a number when all are alike."""
    if len(values_s) == 0:
        return 0.0
    if np.ptp(values_s) < 1e-6:
        return round(float(values_s[0]), 6)
    # With few values more quantiles than values would tell nothing new.
    values = np.quantile(values_s, np.linspace(0, 1, min(_QUANTILES, len(values_s))))
    return Quantiles(values=[round(max(float(value), 0.0), 6) for value in values])


def pass_times(trace: Trace, passes: Sequence[Pass]) -> Times:
    """Return the times of the passes together."""
    if not passes:
        return Times(np.zeros(0), np.zeros(0))
    preprocess = np.concatenate([_preprocess_s(trace, part) for part in passes])
    computed = [_compute_s(trace, part) for part in passes]
    return Times(np.concatenate([times for times, _ in computed]), preprocess, any(unseen for _, unseen in computed))


@dataclass
class _Calls:
    """The calls of some processes in a span of time, one array a column, in order of start."""

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]
    pid: NDArray[np.int64]
    file_id: NDArray[np.int64]  # -1: none
    by_main_thread: NDArray[np.bool_]
    on_pipe: NDArray[np.bool_]
    reads: NDArray[np.bool_]
    writes: NDArray[np.bool_]
    waits: NDArray[np.bool_]


def _calls(trace: Trace, pids: Sequence[int], start_ns: int, end_ns: int) -> _Calls:
    chosen = pc.field("pid").isin(list(pids)) & (pc.field("start_ns") >= start_ns) & (pc.field("start_ns") <= end_ns)
    frame = trace.events_frame(columns=["start_ns", "duration_ns", "op", "pid", "tid", "file_id", "result"], where=chosen)
    is_pipe = (trace.files()["kind"] == "pipe").to_numpy(np.bool_)
    ids = frame["file_id"].fillna(-1).to_numpy(np.int64)
    starts = frame["start_ns"].to_numpy(np.int64)
    return _Calls(
        start_ns=starts,
        end_ns=starts + frame["duration_ns"].to_numpy(np.int64),
        pid=frame["pid"].to_numpy(np.int64),
        file_id=ids,
        by_main_thread=(frame["pid"] == frame["tid"]).to_numpy(np.bool_),
        on_pipe=(ids >= 0) & np.append(is_pipe, False)[ids],
        reads=(frame["op"].isin(schema.READ_OPS) & (frame["result"] > 0)).to_numpy(np.bool_),
        writes=frame["op"].isin(schema.WRITE_OPS).to_numpy(np.bool_),
        waits=frame["op"].isin(schema.WAIT_OPS).to_numpy(np.bool_),
    )


def _preprocess_s(trace: Trace, part: Pass) -> NDArray[np.float64]:
    """From a sample's last read to whatever its process did next: the next sample, or handing the batch over."""
    accesses = part.accesses.sort_values(["pid", "start_ns"], kind="stable")
    ends, pids = accesses["end_ns"].to_numpy(), accesses["pid"].to_numpy()
    same_batch = accesses["batch"].to_numpy()[1:] == accesses["batch"].to_numpy()[:-1]
    within = (accesses["start_ns"].to_numpy()[1:] - ends[:-1])[same_batch]
    if not part.workers:
        return _seconds(within)  # after a batch's last sample a rank goes on to compute
    calls = _calls(trace, part.pids, part.start_ns, part.end_ns)
    last = np.append(~same_batch, True)
    after = []
    for pid in part.pids:
        starts = calls.start_ns[calls.pid == pid]
        own_ends = ends[last & (pids == pid)]
        following = np.searchsorted(starts, own_ends)
        known = following < len(starts)
        after.append(starts[following[known]] - own_ends[known])
    return _seconds(np.concatenate([within, *after]))


def _seconds(durations_ns: NDArray[np.int64]) -> NDArray[np.float64]:
    seconds: NDArray[np.float64] = np.maximum(durations_ns, 0) / 1e9
    return seconds


def _compute_s(trace: Trace, part: Pass) -> tuple[NDArray[np.float64], bool]:
    """Seconds of computation of each step, and whether waits for data could not be told apart from it."""
    if not part.workers:
        starts, ends = part.batches["start_ns"].to_numpy(), part.batches["end_ns"].to_numpy()
        return _seconds(starts[1:] - ends[:-1]), False
    calls = _calls(trace, (part.rank, *part.pids), part.start_ns, part.end_ns)
    given = calls.on_pipe & calls.writes & np.isin(calls.pid, part.pids)
    arrives = (calls.pid == part.rank) & calls.reads & np.isin(calls.file_id, np.unique(calls.file_id[given]))
    taken_ns = _message_starts(calls.start_ns[arrives], calls.end_ns[arrives])
    waits = (calls.pid == part.rank) & calls.by_main_thread & calls.waits
    if not waits.any() or not len(taken_ns):
        return _seconds(np.diff(taken_ns)), True
    # A step ends when the rank next waits for a batch; the last one when it turns to something else, the end of the pass.
    asked_ns = np.append(calls.start_ns[waits], part.end_ns)
    until_ns = asked_ns[np.searchsorted(asked_ns[:-1], taken_ns, side="right")]
    steps = _steps_released(_givers(calls, given, part.pids), len(taken_ns))
    busy_s = _seconds((until_ns - taken_ns)[steps > 0])
    steps = steps[steps > 0]
    return np.repeat(busy_s / steps, steps), False


def _givers(calls: _Calls, given: NDArray[np.bool_], pids: Sequence[int]) -> NDArray[np.int64]:
    """The position in `pids` of the loader that sent each message, in order of time."""
    found = []
    for position, pid in enumerate(pids):
        own = given & (calls.pid == pid)
        starts = _message_starts(calls.start_ns[own], calls.end_ns[own])
        found.append(np.stack([starts, np.full(len(starts), position)]))
    merged = np.concatenate(found, axis=1)
    givers: NDArray[np.int64] = merged[1, np.argsort(merged[0], kind="stable")]
    return givers


def _steps_released(givers: NDArray[np.int64], arrivals: int) -> NDArray[np.int64]:
    """How many steps the rank can do from each arrival to the next, as it takes batches in order: none, one or several.

    Batch k comes from loader k mod n. Step k can be done once batches 0..k have all arrived, so at the latest of their arrivals.
    """
    loaders = int(givers.max()) + 1 if len(givers) else 1
    number = np.empty(len(givers), np.int64)
    for loader in range(loaders):
        own = np.flatnonzero(givers == loader)
        number[own] = np.arange(len(own)) * loaders + loader
    ready = np.maximum.accumulate(np.argsort(number, kind="stable"))
    released: NDArray[np.int64] = np.bincount(ready[ready < arrivals], minlength=arrivals)[:arrivals]
    return released


def _message_starts(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Starts of messages: a message passes in several calls in immediate succession (its length, then its content)."""
    if len(starts) == 0:
        return starts
    begins: NDArray[np.int64] = starts[np.append(True, starts[1:] - ends[:-1] > _SUCCESSION_NS)]
    return begins
