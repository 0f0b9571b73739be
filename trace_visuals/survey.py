"""A first quick pass over a trace: how far it reaches in time, in its files, and which processes matter."""

from dataclasses import dataclass

import numpy as np

from trace_visuals.calls import CallReader, Ints, span_ns
from tracing_tools.trace.progress import Advance
from tracing_tools.trace.reader import Trace


@dataclass(frozen=True)
class Survey:
    """What the second pass needs to know beforehand."""

    begin_ns: int
    end_ns: int  # of the last call or of the trace, whichever is later
    calls: int
    storage_calls: int
    extent_bytes: Ints  # per file: the end of the furthest transfer, or the size when first opened if that is more
    pids: Ints  # every process with a call, sorted
    busiest: list[int]  # processes with storage calls, the one with the most time in them first


def survey(trace: Trace, advance: Advance) -> Survey:
    """Read the trace once; `advance` is told of events read."""
    begin, end = span_ns(trace)
    extent = trace.files()["size_bytes"].fillna(0).to_numpy(dtype=np.int64).copy()
    time_of: dict[int, int] = {}
    total = storage = 0
    for calls in CallReader(trace):
        begin, end = min(begin, int(calls.start_ns[0])), max(end, int(calls.end_ns.max()))
        total, storage = total + len(calls), storage + int(calls.storage.sum())
        placed = (calls.file_id >= 0) & (calls.file_id < len(extent)) & (calls.offset >= 0)
        np.maximum.at(extent, calls.file_id[placed], (calls.offset + calls.size_bytes)[placed])
        pids, place = np.unique(calls.pid, return_inverse=True)
        spent = np.bincount(place, weights=calls.duration_ns * calls.storage)
        for pid, time_ns in zip(pids.tolist(), spent.tolist(), strict=True):
            time_of[pid] = time_of.get(pid, 0) + int(time_ns)
        advance(len(calls))
    busiest = sorted((pid for pid, time_ns in time_of.items() if time_ns), key=lambda pid: (-time_of[pid], pid))
    return Survey(begin, end, total, storage, extent, np.array(sorted(time_of), dtype=np.int64), busiest)
