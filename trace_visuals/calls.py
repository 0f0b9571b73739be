"""A trace's calls as plain numpy columns, batch by batch: what every picture is computed from."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tracing_tools.trace.chunks import Chunk
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import GROUP_OF_OP

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# What a call does, as the pictures show it; a call's `group` is an index into this.
GROUPS = ("read", "write", "open", "sync", "wait", "other")
_GROUP_CODE = {name: code for code, name in enumerate(GROUPS)}
READ, WRITE, OPEN, SYNC, WAIT, OTHER = range(len(GROUPS))

# Kinds of file that are the job's storage; the rest (libraries, pipes, sockets, ...) is shown apart.
STORAGE_KINDS = ("dataset", "checkpoint", "log")

_COLUMNS = ("start_ns", "duration_ns", "op", "pid", "file_id", "offset", "result")


@dataclass(frozen=True)
class Calls:
    """One batch of calls in order of start; every array has one entry per call."""

    start_ns: Ints
    end_ns: Ints
    op: Ints  # index into the reader's `ops`
    group: Ints  # index into GROUPS
    pid: Ints
    file_id: Ints  # -1 when the call names no file
    offset: Ints  # -1 when the call has no position
    result: Ints
    size_bytes: Ints  # bytes moved by reads and writes; 0 for other calls and for failures
    storage: Bools  # the file is of one of STORAGE_KINDS

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.start_ns)

    @property
    def duration_ns(self) -> Ints:
        """Nanoseconds from start to end."""
        return self.end_ns - self.start_ns

    def pick(self, chosen: Bools | Ints) -> "Calls":
        """Return the calls that a mask or an index array chooses."""
        # One search for the chosen places instead of one in every column.
        places = np.flatnonzero(chosen) if chosen.dtype == bool else chosen
        return Calls(*(getattr(self, name).take(places) for name in self.__dataclass_fields__))


@dataclass
class CallReader:
    """Streams a trace's calls; `ops` names the operations met so far."""

    trace: Trace
    ops: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Look up which files are the job's storage."""
        self._storage = self.trace.files()["kind"].isin(STORAGE_KINDS).to_numpy(dtype=bool)

    def __iter__(self) -> Iterator[Calls]:
        """Yield every call of the trace."""
        return self.until(None)

    def until(self, end_ns: int | None) -> Iterator[Calls]:
        """Yield the calls that start before `end_ns` (monotonic ns; None for all)."""
        yield from self._read(None if end_ns is None else pc.field("start_ns") < end_ns)

    def between(self, begin_ns: int, end_ns: int) -> Iterator[Calls]:
        """Yield the calls that start from `begin_ns` on and before `end_ns` (monotonic ns); other row groups are not read."""
        yield from self._read((pc.field("start_ns") >= begin_ns) & (pc.field("start_ns") < end_ns))

    def of(self, chunk: Chunk) -> Iterator[Calls]:
        """Yield the calls of a chunk of the trace."""
        yield from self._read(None, chunk.parts)

    def in_flight(self, chunk: Chunk) -> Calls:
        """Return the calls of earlier chunks that end after this one begins."""
        columns = [column.combine_chunks() for column in chunk.in_flight.select(_COLUMNS).columns]
        return self._decode(pa.RecordBatch.from_arrays(columns, _COLUMNS))

    def _read(self, where: pc.Expression | None, parts: Sequence[int] | None = None) -> Iterator[Calls]:
        for batch in self.trace.events(_COLUMNS, where, parts=parts):
            if batch.num_rows:
                yield self._decode(batch)

    def _decode(self, batch: pa.RecordBatch) -> Calls:
        start, duration, pid, result = (_numbers(batch.column(name)) for name in ("start_ns", "duration_ns", "pid", "result"))
        file_id, offset = (_numbers(batch.column(name)) for name in ("file_id", "offset"))
        op, group = self._operations(batch.column("op"))
        moves = (group == READ) | (group == WRITE)
        storage = np.zeros(len(start), dtype=bool)
        known = (file_id >= 0) & (file_id < len(self._storage))
        storage[known] = self._storage[file_id[known]]
        size = np.where(moves, np.maximum(result, 0), 0)
        return Calls(start, start + np.maximum(duration, 0), op, group, pid, file_id, offset, result, size, storage)

    def _operations(self, column: pa.DictionaryArray) -> tuple[Ints, Ints]:
        names = column.dictionary.to_pylist()
        self.ops.extend(name for name in names if name not in self.ops)
        codes = _numbers(column.indices)
        op_of = np.array([self.ops.index(name) for name in names], dtype=np.int64)
        group_of = np.array([_GROUP_CODE.get(GROUP_OF_OP.get(name, "other"), OTHER) for name in names], dtype=np.int64)
        return op_of[codes], group_of[codes]


def _numbers(column: pa.Array) -> Ints:
    filled = column.fill_null(-1) if column.null_count else column
    values: Ints = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return values


def span_ns(trace: Trace) -> tuple[int, int]:
    """Return the trace's first and last moment (monotonic ns) by its manifest, or by its calls where the manifest is silent."""
    begin, end = trace.manifest.start_ns, trace.manifest.end_ns
    if end > begin > 0:
        return begin, end
    firsts, lasts = [begin] if begin > 0 else [], [begin + 1]
    for batch in trace.events(("start_ns", "duration_ns")):
        if batch.num_rows:
            start = _numbers(batch.column("start_ns"))
            firsts.append(int(start[0]))
            lasts.append(int((start + _numbers(batch.column("duration_ns"))).max()))
    return min(firsts, default=0), max(lasts)
