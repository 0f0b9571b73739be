"""Read all calls of traces once, before the report's analyses read them again, which need the results.

The results are the span of time, the sizes of files, and the busiest processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from iotwin.common.progress import Advance
from iotwin.trace_store.chunks import Chunk, folded
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.workers import Workers
from iotwin.trace_visuals.call_columns import CallColumns, CallReader, Ints, span_ns


@dataclass(frozen=True)
class Survey:
    """Properties of a trace that the report's analyses must know before they read its calls."""

    begin_ns: int
    end_ns: int  # end of the last call or of the trace, whichever is later
    calls: int
    storage_calls: int
    extent_bytes: Ints  # per file: the highest end of a transfer, or the size when first opened if that is larger
    pids: Ints  # every process with a call, sorted
    busiest: list[int]  # processes with storage calls, the one with the most time in them first
    ops: list[str]  # names of all operations; analyses identify an operation by its index here


@dataclass
class _Seen:
    """Accumulates the fields of a Survey over the calls of one chunk of a trace, or of several successive chunks."""

    begin_ns: int
    end_ns: int
    extent_bytes: Ints
    calls: int = 0
    storage_calls: int = 0
    time_of: dict[int, int] = field(default_factory=dict)  # ns in storage calls, by pid of every process with a call
    ops: list[str] = field(default_factory=list)

    def add(self, calls: CallColumns) -> None:
        self.begin_ns, self.end_ns = min(self.begin_ns, int(calls.start_ns[0])), max(self.end_ns, int(calls.end_ns.max()))
        self.calls, self.storage_calls = self.calls + len(calls), self.storage_calls + int(calls.storage.sum())
        placed = (calls.file_id >= 0) & (calls.file_id < len(self.extent_bytes)) & (calls.offset >= 0)
        np.maximum.at(self.extent_bytes, calls.file_id[placed], (calls.offset + calls.size_bytes)[placed])
        pids, place = np.unique(calls.pid, return_inverse=True)
        spent = np.bincount(place, weights=calls.duration_ns * calls.storage)
        for pid, time_ns in zip(pids.tolist(), spent.tolist(), strict=True):
            self.time_of[pid] = self.time_of.get(pid, 0) + int(time_ns)

    def later(self, other: "_Seen") -> None:
        self.begin_ns, self.end_ns = min(self.begin_ns, other.begin_ns), max(self.end_ns, other.end_ns)
        self.calls, self.storage_calls = self.calls + other.calls, self.storage_calls + other.storage_calls
        self.extent_bytes = np.maximum(self.extent_bytes, other.extent_bytes)
        for pid, time_ns in other.time_of.items():
            self.time_of[pid] = self.time_of.get(pid, 0) + time_ns
        self.ops = list(dict.fromkeys([*self.ops, *other.ops]))

    def survey(self) -> Survey:
        time_of = self.time_of
        busiest = sorted((pid for pid, time_ns in time_of.items() if time_ns), key=lambda pid: (-time_of[pid], pid))
        pids = np.array(sorted(time_of), dtype=np.int64)
        return Survey(
            self.begin_ns, self.end_ns, self.calls, self.storage_calls, self.extent_bytes, pids, busiest, self.ops,
        )  # fmt: skip


def surveys(traces: Sequence[Trace], chunks: Sequence[Sequence[Chunk]], each: Workers, advance: Advance) -> list[Survey]:
    """Return a Survey of each trace. `chunks` lists the chunks of each trace.

    `each` maps a function over chunks, possibly in other processes. `advance` is called with the number of events read.
    """
    spans = [span_ns(trace) for trace in traces]
    seen = each(_survey_chunk, [(chunk, span) for own, span in zip(chunks, spans, strict=True) for chunk in own])
    return [folded(seen, own, advance).survey() for own in chunks]


def _survey_chunk(task: tuple[Chunk, tuple[int, int]]) -> _Seen:
    chunk, span = task
    trace = Trace(chunk.path)
    seen = _Seen(*span, trace.files()["size_bytes"].fillna(0).to_numpy(dtype=np.int64).copy())
    reader = CallReader(trace, seen.ops)
    for calls in reader.of(chunk):
        seen.add(calls)
    return seen
