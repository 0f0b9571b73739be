"""Read a trace's calls as numpy columns, batch by batch, for pictures and the report."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from iotwin.trace_store import fold, schema
from iotwin.trace_store.chunks import Chunk
from iotwin.trace_store.columns import integers
from iotwin.trace_store.fold import EventDecoder, Events
from iotwin.trace_store.reader import Trace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# What calls do, as pictures distinguish them. CallColumns.group is an index into this tuple.
GROUPS = ("read", "write", "open", "sync", "wait", "other")
READ, WRITE, OPEN, SYNC, WAIT, OTHER = range(len(GROUPS))
_GROUP = np.array([GROUPS.index(group) if group in GROUPS else OTHER for group in fold.GROUPS])

# Calls on other files (libraries, pipes, sockets, ...) are shown separately from storage.
STORAGE_KINDS = schema.FILE_KINDS[:3]  # data set, checkpoints and logs

_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "file_id", "offset", "result")


@dataclass(frozen=True)
class CallColumns:
    """One batch of calls in order of start; every array has one entry per call."""

    start_ns: Ints
    end_ns: Ints
    op: Ints  # index into CallReader.ops
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


class CallReader:
    """Reads a trace's calls in batches. `ops` has the names of operations read so far; `CallColumns.op` is an index into it."""

    def __init__(self, trace: Trace, ops: list[str] | None = None) -> None:
        self._trace, self._decoder = trace, EventDecoder(trace.files()["kind"].tolist(), ops)
        self.ops = self._decoder.ops

    def __iter__(self) -> Iterator[CallColumns]:
        """Yield every call of the trace."""
        return self._read()

    def until(self, end_ns: int) -> Iterator[CallColumns]:
        """Yield the calls that start before `end_ns` (monotonic ns)."""
        return self._read(pc.field("start_ns") < end_ns)

    def between(self, begin_ns: int, end_ns: int) -> Iterator[CallColumns]:
        """Yield the calls that start from `begin_ns` on and before `end_ns` (monotonic ns), and read no others."""
        return self._read((pc.field("start_ns") >= begin_ns) & (pc.field("start_ns") < end_ns))

    def of(self, chunk: Chunk) -> Iterator[CallColumns]:
        """Yield the calls of a chunk of the trace."""
        return self._read(None, chunk.parts)

    def in_flight(self, chunk: Chunk) -> CallColumns:
        """Return the calls that began in earlier chunks of the trace and end after `chunk` begins."""
        return _calls(Events(chunk.in_flight, self._decoder))

    def _read(self, where: pc.Expression | None = None, parts: Sequence[int] | None = None) -> Iterator[CallColumns]:
        batches = self._trace.events(_COLUMNS, where, parts=parts)
        return (_calls(Events(batch, self._decoder)) for batch in batches if batch.num_rows)


def _calls(events: Events) -> CallColumns:
    start_ns = events.column("start_ns")
    return CallColumns(
        start_ns, start_ns + events.duration_ns, events.op, _GROUP[events.group], events.column("pid"), events.file_id,
        events.column("offset"), events.result, events.moved_bytes, (events.kind >= 0) & (events.kind < len(STORAGE_KINDS)),
    )  # fmt: skip


def span_ns(trace: Trace) -> tuple[int, int]:
    """Return begin and end of the trace (monotonic ns), from its manifest or, if that lacks them, from its calls."""
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
