"""Read all calls of traces once, before the report's analyses read them again.

The results, which the analyses require, are the span of time, the sizes of files, and the busiest processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from iotwin.common.progress import Advance
from iotwin.trace_store.columns import integers
from iotwin.trace_store.fold import Events, TraceStretch, fold_all
from iotwin.trace_store.parallel_fold import Workers, in_this_process
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.call_columns import COLUMNS, Ints, calls_of, span_ns


@dataclass(frozen=True)
class Survey:
    """Properties of a trace that the report's analyses must know before they read its calls."""

    begin_ns: int
    end_ns: int  # end of the last call or of the trace, whichever is later
    calls: int
    storage_calls: int
    extent_bytes: Ints  # per file: the highest end of a transfer, or the size when first opened if that is larger
    pids: Ints  # every process with a call, sorted
    busiest: list[int]  # processes with storage calls, in descending order of the time in these calls
    ops: list[str]  # names of all operations; analyses identify an operation by its index here


class _Seen:
    """Collects the fields of a Survey."""

    columns = COLUMNS

    def __init__(self, span: tuple[int, int], stretch: TraceStretch) -> None:
        self.begin_ns, self.end_ns = span
        self.extent_bytes = integers(stretch.trace.table("files", ["size_bytes"])["size_bytes"]).copy()
        self.calls = self.storage_calls = 0
        self.time_of: dict[int, int] = {}  # ns in storage calls, by pid of every process with a call
        self.ops = stretch.decoder.ops

    def add(self, events: Events) -> None:
        """Add a batch of events."""
        calls = calls_of(events)
        self.begin_ns, self.end_ns = min(self.begin_ns, int(calls.start_ns[0])), max(self.end_ns, int(calls.end_ns.max()))
        self.calls, self.storage_calls = self.calls + len(calls), self.storage_calls + int(calls.storage.sum())
        placed = (calls.file_id >= 0) & (calls.file_id < len(self.extent_bytes)) & (calls.offset >= 0)
        np.maximum.at(self.extent_bytes, calls.file_id[placed], (calls.offset + calls.size_bytes)[placed])
        pids, place = np.unique(calls.pid, return_inverse=True)
        spent = np.bincount(place, weights=calls.duration_ns * calls.storage)
        for pid, time_ns in zip(pids.tolist(), spent.tolist(), strict=True):
            self.time_of[pid] = self.time_of.get(pid, 0) + int(time_ns)

    def later(self, other: "_Seen") -> None:
        """Add the figures of `other`, which collected the calls that follow in the trace."""
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


def surveys(traces: Sequence[Trace], each: Workers = in_this_process, advance: Advance | None = None) -> list[Survey]:
    """Return a Survey of each trace. `each` and `advance` are as for `fold_all`."""
    makes = [partial(_Seen, span_ns(trace)) for trace in traces]
    return [seen.survey() for seen in fold_all(traces, makes, each, advance=advance)]
