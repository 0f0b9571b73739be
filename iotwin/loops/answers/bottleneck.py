"""What limits a traced job: storage, its loaders, the computation, checkpoints or its start."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.units import format_duration
from iotwin.trace_store.reader import Trace

WAITS = ("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait")
_MOST_EVENTS = 2_000_000  # all calls of a trace are in memory while it is judged
_LITTLE = 0.05  # waits or checkpoints that take a smaller share of training do not limit a job
_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "tid", "file_id")
_SECOND = 1e9

_Spans = NDArray[np.int64]  # (number, 2): begin and end in ns, in order, without overlap


@dataclass(frozen=True)
class TrainingWindow:
    """The part of a trace that a verdict is about. Times are in seconds from the trace's first moment."""

    phase: str
    begin_s: float
    end_s: float


@dataclass(frozen=True)
class JobVerdict:
    """What limits a job: `limited_by` is storage, loaders, compute, checkpoints, start-up or unknown.

    `waiting_share` is the share of the window in which the rank waits for data; None if unknown.
    """

    limited_by: str
    waiting_share: float | None
    window: TrainingWindow | None
    sentence: str


def quick_verdict(trace: Trace) -> dict[str, Any] | None:
    """Return the verdict on the job of `trace` as a document; None if the trace is too large to judge it in passing."""
    return asdict(verdict_of(trace)) if 0 < trace.manifest.events <= _MOST_EVENTS and trace.fits_in_memory else None


def verdict_of(trace: Trace) -> JobVerdict:
    """Return what limits the job of `trace`, judged by the main thread of its first rank, and its loaders, while it trains."""
    kinds = trace.files()["kind"].astype(str).to_numpy()
    processes = trace.processes()
    family = _first_rank(processes)
    calls = trace.events_frame(_COLUMNS, (pc.field("file_id") >= 0) | pc.field("op").isin(WAITS))
    known = calls["file_id"].fillna(-1).to_numpy(dtype=np.int64)
    kind = np.where(known >= 0, kinds[np.clip(known, 0, None)], "") if len(kinds) else np.full(len(calls), "")
    data = (kind == "dataset") & calls["pid"].isin(family).to_numpy()
    if not data.any():
        return JobVerdict("unknown", None, None, "What limits the job is unknown: no rank was seen to read a data set.")
    main = ((calls["pid"] == family[0]) & (calls["tid"] == family[0])).to_numpy()
    by_loaders = data & (calls["pid"] != family[0]).to_numpy()
    waits = main & (calls["op"].isin(WAITS).to_numpy() | data)
    # If a rank with loaders reads before its loaders do, that is no training. It may be a pass that fills the page cache.
    training, phase = _training(trace, calls, by_loaders if by_loaders.any() else data)
    waiting = _within(_spans(calls, waits), training)
    reading = _length(_within(_spans(calls, data), waiting))
    saving = _length(_within(_spans(calls, main & (kind == "checkpoint")), np.array([[training[0, 0], training[-1, 1]]])))
    begin, end = training[0, 0], training[-1, 1]
    window = TrainingWindow(phase, (begin - trace.manifest.start_ns) / _SECOND, (end - trace.manifest.start_ns) / _SECOND)
    before = (begin - trace.manifest.start_ns) / max(trace.manifest.end_ns - trace.manifest.start_ns, 1)
    shares = (
        _length(waiting) / max(_length(training), 1),
        reading / max(_length(waiting), 1),
        saving / max(end - begin, 1),
        before,
    )
    return _judged(shares, window, bool(waits.any()))


def _first_rank(processes: pd.DataFrame) -> list[int]:
    """Return the pids of the first rank that trains and of its loaders, the rank first; [] without a rank.

    A process that starts ranks, and reads the data before they do, is no rank that trains.
    """
    roles = processes["role"].astype(str)
    ranks, loaders = processes[roles == "rank"], processes[roles == "loader"]
    trains = ranks["pid"].isin(loaders["ppid"]) if len(loaders) else ~ranks["pid"].isin(ranks["ppid"])
    first = ranks.loc[trains, "pid"].astype(int).tolist()[:1]
    return first + loaders.loc[loaders["ppid"].isin(first), "pid"].astype(int).tolist()


def _judged(shares: tuple[float, float, float, float], window: TrainingWindow, waits_seen: bool) -> JobVerdict:
    """Return the verdict for the shares of waiting in training, of reading in waiting, of checkpoints, and of the start."""
    waiting, reading, saving, before = shares
    span = f"{window.phase}, {window.begin_s:.1f} s to {window.end_s:.1f} s"
    waits = f"the rank waits for data for {waiting:.0%} of training ({span})"
    if saving >= _LITTLE and saving > waiting:
        text = f"Limited by checkpoints: the rank writes them for {saving:.0%} of training ({span})."
        return JobVerdict("checkpoints", waiting, window, text)
    if not waits_seen:
        return JobVerdict(
            "unknown", None, window, f"What limits the job is unknown: no call of the rank shows a wait for data ({span})."
        )
    if waiting >= _LITTLE and reading >= 0.5:
        return JobVerdict(
            "storage", waiting, window, f"Limited by storage: {waits}, and storage is busy for {reading:.0%} of that."
        )
    if waiting >= _LITTLE:
        return JobVerdict(
            "loaders", waiting, window, f"Limited by the loaders: {waits}, but storage is idle for {1 - reading:.0%} of that."
        )
    if before > 0.5:
        start = format_duration(int(window.begin_s * _SECOND))
        return JobVerdict("start-up", waiting, window, f"Limited by its start: {start} pass before training; then {waits}.")
    return JobVerdict("compute", waiting, window, f"Not limited by storage: {waits}.")


def _training(trace: Trace, calls: pd.DataFrame, data: NDArray[np.bool_]) -> tuple[_Spans, str]:
    """Return the times of training and their name: the logged epochs, else the time from the first read to the last."""
    phases = trace.phases()
    epochs = phases[phases["phase"].astype(str) == "epoch"].dropna(subset=["start_ns", "end_ns"])
    if len(epochs):
        return _union(epochs[["start_ns", "end_ns"]].to_numpy(dtype=np.int64)), "epochs"
    spans = _spans(calls, data)
    return np.array([[spans[0, 0], spans[-1, 1]]]), "first to last read"


def _spans(calls: pd.DataFrame, chosen: NDArray[np.bool_]) -> _Spans:
    """Return the times with at least one of the `chosen` calls in flight."""
    begin = calls["start_ns"].to_numpy()[chosen]
    return _union(np.column_stack((begin, begin + calls["duration_ns"].to_numpy()[chosen])))


def _union(spans: _Spans) -> _Spans:
    if not len(spans):
        return np.empty((0, 2), dtype=np.int64)
    spans = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(spans[:, 1])
    first = np.flatnonzero(np.append(True, spans[1:, 0] > reach[:-1]))
    return np.column_stack((spans[first, 0], np.append(reach[first[1:] - 1], reach[-1])))


def _within(spans: _Spans, others: _Spans) -> _Spans:
    """Return the times in both `spans` and `others`."""
    moments = np.concatenate((spans.ravel(), others.ravel()))
    steps = np.concatenate((np.tile([1, -1], len(spans)), np.tile([1, -1], len(others))))
    order = np.lexsort((steps, moments))
    depth, moments = np.cumsum(steps[order]), moments[order]
    both = np.flatnonzero(depth == 2)
    return np.column_stack((moments[both], moments[both + 1])) if len(both) else np.empty((0, 2), dtype=np.int64)


def _length(spans: _Spans) -> int:
    return int((spans[:, 1] - spans[:, 0]).sum())
