"""Read a trace's calls as numpy columns, batch by batch, for pictures and the report."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from iotwin.trace_store import fold, schema
from iotwin.trace_store.columns import integers
from iotwin.trace_store.fold import EventDecoder, Events
from iotwin.trace_store.reader import Trace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Groups of operations in pictures. CallColumns.group is an index into this tuple.
GROUPS = ("read", "write", "open", "sync", "wait", "other")
READ, WRITE, OPEN, SYNC, WAIT, OTHER = range(len(GROUPS))
_GROUP = np.array([GROUPS.index(group) if group in GROUPS else OTHER for group in fold.GROUPS])

# Calls on other files (libraries, pipes, sockets, ...) are shown separately from storage.
STORAGE_KINDS = schema.FILE_KINDS[:3]  # data set, checkpoints and logs

COLUMNS = ("start_ns", "duration_ns", "op", "pid", "file_id", "offset", "result")


@dataclass(frozen=True)
class CallColumns:
    """One batch of calls in order of start; every array has one entry per call."""

    start_ns: Ints
    end_ns: Ints
    op: Ints  # index into the names of operations, as for calls_of
    group: Ints  # index into GROUPS
    pid: Ints
    file_id: Ints  # -1 if the call has no file
    offset: Ints  # -1 if the call has no offset
    result: Ints
    size_bytes: Ints  # bytes moved by reads and writes; 0 for other calls and for failures
    storage: Bools  # True if the file's kind is one of STORAGE_KINDS

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """Duration of each call in nanoseconds."""
        return self.end_ns - self.start_ns

    def pick(self, chosen: Bools | Ints) -> "CallColumns":
        """Return the calls that `chosen`, a mask or an array of indices, selects."""
        # One search for the indices is faster than applying a mask to every column.
        indices = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return CallColumns(*(getattr(self, name).take(indices) for name in self.__dataclass_fields__))


def calls_of(events: Events, ops: list[str] | None = None) -> CallColumns:
    """Return `events` as calls. Their `op` is an index into `ops`, the names of operations; None: the names of the decoder."""
    start_ns, op = events.column("start_ns"), events.op
    if ops is not None:
        op = np.array([ops.index(name) for name in events.decoder.ops], np.int64)[op]
    return CallColumns(
        start_ns, start_ns + events.duration_ns, op, _GROUP[events.group], events.column("pid"), events.file_id,
        events.column("offset"), events.result, events.moved_bytes, (events.kind >= 0) & (events.kind < len(STORAGE_KINDS)),
    )  # fmt: skip


def read_calls(trace: Trace, ops: list[str], where: pc.Expression) -> Iterator[CallColumns]:
    """Yield the calls for which `where` is true.

    `ops`: names of operations; the names of further operations are appended to it.
    """
    decoder = EventDecoder.of(trace, ops)
    return (calls_of(Events(batch, decoder)) for batch in trace.events(COLUMNS, where) if batch.num_rows)


def span_ns(trace: Trace) -> tuple[int, int]:
    """Return begin and end of the trace (monotonic ns), from its manifest.

    If the manifest lacks them, its calls determine them.
    """
    begin, end = trace.manifest.start_ns, trace.manifest.end_ns
    if end > begin > 0:
        return begin, end
    firsts, lasts = [begin] if begin > 0 else [], [begin + 1]
    for batch in trace.events(("start_ns", "duration_ns")):
        if batch.num_rows:
            start = integers(batch.column("start_ns"))
            firsts.append(int(start[0]))
            lasts.append(int((start + integers(batch.column("duration_ns"))).max()))
    return min(firsts, default=0), max(lasts)
