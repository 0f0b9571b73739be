"""Decode the calls of a trace into numpy columns, and merge the figures that were computed for parts of the trace."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from iotwin.common.progress import Advance
from iotwin.trace_store.chunks import Chunk
from iotwin.trace_store.columns import integers
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.schema import GROUP_OF_OP

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class DecodedCalls:
    """A batch of calls in order of start; every column has shape (n,)."""

    batch: pa.RecordBatch
    op: Ints  # index into the decoder's `ops`
    group: Ints  # index of the operation's group in the decoder's `groups`; the decoder's `other` for all other groups
    file_id: Ints  # -1 if the call has no file
    kind: Ints  # index of the file's kind in the decoder's `kinds`; -1 for other kinds and for calls without a file
    rows: Ints | None = None  # index of each call's row in `batch`; None: all rows

    def where(self, selected: NDArray[np.bool_]) -> "DecodedCalls":
        """Return the calls for which the mask `selected`, shape (n,), is True."""
        if selected.all():
            return self
        rows = np.flatnonzero(selected)
        op, group, file_id, kind = (column[rows] for column in (self.op, self.group, self.file_id, self.kind))
        return DecodedCalls(self.batch, op, group, file_id, kind, rows if self.rows is None else self.rows[rows])

    def column(self, name: str, missing: int = -1) -> Ints:
        """Return the numbers of the column `name` of these calls, with `missing` in place of null."""
        values = integers(self.batch.column(name), missing)
        return values if self.rows is None else values[self.rows]

    def duration_ns(self) -> Ints:
        """Return the durations of the calls in ns; negative durations, as of a damaged trace, become 0."""
        return np.maximum(self.column("duration_ns", 0), 0)

    def moved_bytes(self, transfers: NDArray[np.bool_]) -> Ints:
        """Return the bytes that each call transferred, shape (n,); 0 for failed calls and where the mask `transfers` is False."""
        return np.where(transfers, np.maximum(self.column("result", 0), 0), 0)


class CallDecoder:
    """Decodes a trace's events in batches; `ops` lists the names of the operations read so far.

    `columns` must include op and file_id. `groups` and `kinds` list the groups of operations and the kinds of files that get an
    index, their position in the list. Operations of all other groups get the index `other`.
    """

    def __init__(
        self,
        trace: Trace,
        columns: Sequence[str],
        groups: Sequence[str],
        kinds: Sequence[str],
        other: int = -1,
        ops: list[str] | None = None,
    ) -> None:
        self._trace, self._columns, self._groups, self._other = trace, tuple(columns), tuple(groups), other
        self.ops: list[str] = [] if ops is None else ops
        kind_of_file = trace.files()["kind"].astype(object).to_numpy()
        self.files = len(kind_of_file)
        self._kind_of_file = np.full(self.files + 1, -1, np.int64)  # by file id; the last entry is for calls without a file, -1
        for index, kind in enumerate(kinds):
            self._kind_of_file[:-1][kind_of_file == kind] = index

    def read(
        self, where: pc.Expression | None = None, parts: Sequence[int] | None = None, batch_rows: int | None = None
    ) -> Iterator[DecodedCalls]:
        """Yield the calls for which `where` is true, in non-empty batches; `parts`: indices of the Parquet files to read."""
        size = {} if batch_rows is None else {"batch_rows": batch_rows}
        for batch in self._trace.events(self._columns, where, parts=parts, **size):
            if batch.num_rows:
                yield self._decode(batch)

    def in_flight(self, chunk: Chunk) -> DecodedCalls:
        """Return the calls that began before `chunk` and end after it begins, possibly none."""
        columns = [column.combine_chunks() for column in chunk.in_flight.select(self._columns).columns]
        return self._decode(pa.RecordBatch.from_arrays(columns, self._columns))

    def _decode(self, batch: pa.RecordBatch) -> DecodedCalls:
        operations = batch.column("op")
        names = operations.dictionary.to_pylist()
        self.ops.extend(name for name in names if name not in self.ops)
        # Code -1, a call without an operation, selects the last entry.
        op_of_code = np.array([self.ops.index(name) for name in names] + [-1], np.int64)
        group_of_code = np.array([self._group(name) for name in names] + [self._other], np.int64)
        code = integers(operations.indices, missing=-1)
        file_id = integers(batch.column("file_id"), missing=-1)
        return DecodedCalls(batch, op_of_code[code], group_of_code[code], file_id, self._kind_of_file[file_id])

    def _group(self, op: str) -> int:
        group = GROUP_OF_OP.get(op)
        return self._groups.index(group) if group in self._groups else self._other


class _Extendable(Protocol):
    def extend(self, later: Self, /) -> None: ...


Found = TypeVar("Found", bound=_Extendable)


class Collectors:
    """Base class of objects whose attributes collect figures about the calls of one or more consecutive chunks."""

    def extend(self, later: Self) -> None:
        """Add to each collector the figures of the same collector of `later`, which covers the following chunks of the trace."""
        for name, collector in vars(self).items():
            collector.extend(getattr(later, name))


def folded(found: Iterator[Found], chunks: Sequence[Chunk], advance: Advance) -> Found:
    """Merge the results `found`, one per chunk and in the chunks' order. Pass each chunk's number of events to `advance`."""
    whole = next(found)
    advance(chunks[0].rows)
    for chunk in chunks[1:]:
        whole.extend(next(found))
        advance(chunk.rows)
    return whole
