"""Tracks for trace viewers that do not show system calls: phases, parts of steps, accelerator work, samples."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.reader import Trace

_DEVICE_KINDS = ("kernel", "copy", "set")
_NOT_MEASURED = ("time_ns", "interval_ns")


@dataclass
class Slices:
    """Named intervals on one track, in order of start. Viewers show the track under the process `pid`; None: the machine."""

    track: str
    pid: int | None
    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    names: NDArray[np.object_]


@dataclass
class Counter:
    """A track that shows a value over time."""

    track: str
    time_ns: NDArray[np.int64]
    values: NDArray[np.float64]


def pieces(rows: int, piece_rows: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `piece_rows` that together cover the indices below `rows`."""
    for begin in range(0, rows, piece_rows):
        yield slice(begin, min(begin + piece_rows, rows))


def process_names(trace: Trace) -> dict[int, str]:
    """Return the command name (comm) of each process in `trace`, by pid."""
    processes = trace.processes()
    return dict(zip(processes["pid"].astype(int).tolist(), processes["comm"].astype(str).tolist(), strict=True))


def slices(trace: Trace) -> Iterator[Slices]:
    """Yield the tracks of phases (one per rank and phase), of parts of steps, and of accelerator calls, kernels and copies."""
    phases = trace.phases()
    key: Any
    for key, group in phases.groupby(["rank", "phase"], observed=True, dropna=False):
        rank, phase = key
        duration = group["end_ns"] - group["start_ns"]
        numbers = group["step" if phase == "step" else "epoch"]
        names = pd.Series([f"{phase} {_whole(number)}" if pd.notna(number) else str(phase) for number in numbers], dtype=object)
        yield _slices(f"rank {_whole(rank)}: {phase}", None, group["start_ns"], duration, names)
    yield from _parts(trace.step_parts())
    gpu = trace.gpu()
    if gpu is None:
        return
    on_device = gpu["kind"].isin(_DEVICE_KINDS)
    for (device, stream), group in gpu[on_device].groupby(["device", "stream"], dropna=False):
        track = f"GPU {_whole(device)} stream {_whole(stream)}"
        yield _slices(track, None, group["start_ns"], group["duration_ns"], group["name"].astype(str))
    for key, group in gpu[~on_device].groupby(["pid", "tid"], dropna=False):
        pid, tid = key
        process = None if pd.isna(pid) else int(pid)
        names = group["name"].astype(str)
        yield _slices(f"CUDA calls of thread {_whole(tid)}", process, group["start_ns"], group["duration_ns"], names)


def _parts(parts: pd.DataFrame | None) -> Iterator[Slices]:
    for key, group in [] if parts is None else parts.groupby(["rank", "name"], observed=True, dropna=False):
        rank, name = key
        start, duration = group["start_ns"].to_numpy(np.int64), group["duration_ns"].to_numpy(np.int64)
        row = _rows_without_overlap(start, start + duration)
        steps = [f"{name} {_whole(step)}" if pd.notna(step) else str(name) for step in group["step"]]
        for index in range(row.max() + 1):
            at = row == index
            track = f"rank {_whole(rank)}: {name}" + (f" ({index + 1})" if index else "")
            yield Slices(track, None, start[at], duration[at], np.array(steps, dtype=object)[at])


def _rows_without_overlap(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return a row index for each interval, such that no two intervals in a row overlap. `start` must be ascending."""
    row = np.zeros(len(start), np.int64)
    if (start[1:] >= end[:-1]).all():
        return row
    ends: list[int] = []
    for index, (begin, finish) in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        number = next((i for i, last in enumerate(ends) if last <= begin), len(ends))
        ends[number : number + 1] = [finish]
        row[index] = number
    return row


def _slices(
    track: str, pid: int | None, start_ns: "pd.Series[int]", duration_ns: "pd.Series[int]", names: "pd.Series[Any]"
) -> Slices:
    start, duration = start_ns.to_numpy().astype(np.int64), duration_ns.to_numpy().astype(np.int64)
    return Slices(track, pid, start, duration, names.to_numpy(dtype=object))


def _whole(number: Any) -> str:
    return "?" if pd.isna(number) else str(int(number))


def counters(trace: Trace) -> Iterator[Counter]:
    """Yield a counter for each column of samples and each device, process or resource, and the requests in flight per device."""
    for kind, expected in schema.SAMPLES.items():
        samples = trace.samples(kind)
        if samples is None:
            continue
        keys = [name for name in ("device", "pid", "resource") if name in expected.names]
        measured = [name for name in samples.columns if name not in (*_NOT_MEASURED, *keys, "command")]
        for key, group in samples.groupby(keys) if keys else [((), samples)]:
            source = " ".join(str(part) for part in key)
            for name in measured:
                valid = group[group[name].notna()]
                if len(valid):
                    track = " ".join(part for part in (kind, source, name) if part)
                    yield Counter(track, valid["time_ns"].to_numpy(np.int64), valid[name].to_numpy(np.float64))
    block = trace.block()
    for device, group in [] if block is None else block[block["duration_ns"].notna()].groupby("device"):
        issued = group["issue_ns"].to_numpy(np.int64)
        times = np.concatenate([issued, issued + group["duration_ns"].to_numpy(np.int64)])
        change = np.repeat([1, -1], len(group))
        order = np.argsort(times, kind="stable")
        yield Counter(f"block requests in flight on device {device}", times[order], change[order].cumsum().astype(np.float64))
