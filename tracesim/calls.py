"""The calls that a comparison is about: what a job does to its data set and its checkpoints, as columns of numbers.

Interpreter start-up, libraries, logs, pipes and sockets are left out: a twin need not import a deep-learning framework to be
a twin of what the job does to storage.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracing_tools.trace.chunks import Chunk
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import GROUP_OF_OP

FILE_KINDS = ("dataset", "checkpoint")
GROUPS = ("read", "write", "open", "close", "sync", "map")
READ, WRITE, OPEN, CLOSE, SYNC, MAP = range(len(GROUPS))

_COLUMNS = ("start_ns", "duration_ns", "op", "tid", "file_id", "offset", "result")
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True)
class Calls:
    """Calls in order of start; every column has shape (n,)."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    group: NDArray[np.int64]  # index into GROUPS
    kind: NDArray[np.int64]  # of the file: index into FILE_KINDS
    thread: NDArray[np.int64]  # 0, 1, ... in order of tid
    file: NDArray[np.int64]  # file_id
    offset: NDArray[np.int64]  # bytes; -1 when not known
    moved_bytes: NDArray[np.int64]  # by a read or a write; 0 for other calls and for failed ones

    def where(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> "Calls":
        """Return the calls that a mask selects, or an index array in its order."""
        return Calls(*(column[selected] for column in vars(self).values()))


class StorageCalls:
    """The calls of `groups` on files of FILE_KINDS in a chunk of a trace, batch by batch in order of start.

    Iterating raises IotwinError when a call is on a file that the files table lacks.
    """

    def __init__(self, chunk: Chunk, groups: frozenset[str] = frozenset(GROUPS)) -> None:
        self._trace, self._chunk, self._wanted = Trace(chunk.path), chunk, groups
        kinds = self._trace.files()["kind"].astype(object).to_numpy()
        self.files = len(kinds)
        self._kind_of_file = np.full(len(kinds) + 1, -1, dtype=np.int64)  # the last entry stands for calls without a file
        for index, kind in enumerate(FILE_KINDS):
            self._kind_of_file[:-1][kinds == kind] = index

    def __iter__(self) -> Iterator[Calls]:
        """Yield batches with a call or more."""
        for batch in self._trace.events(_COLUMNS, batch_rows=_BATCH_ROWS, parts=self._chunk.parts):
            calls = self._calls(batch)
            if len(calls.start_ns):
                yield calls

    def in_flight(self) -> Calls:
        """Return the calls of earlier chunks that end after this one begins."""
        table = self._chunk.in_flight.select(_COLUMNS).combine_chunks()
        return self._calls(pa.RecordBatch.from_arrays([column.combine_chunks() for column in table.columns], _COLUMNS))

    def _calls(self, batch: pa.RecordBatch) -> Calls:
        group = _groups(batch.column("op"), self._wanted)
        file = _integers(batch.column("file_id"), missing=-1)
        if len(file) and file.max() >= self.files:
            path = self._trace.path
            raise IotwinError(f"{path}: files.parquet lacks files that calls are on: it is damaged; copy the trace again")
        kept = np.flatnonzero((group >= 0) & (self._kind_of_file[file] >= 0))
        every = len(kept) == batch.num_rows

        def column(name: str, missing: int) -> NDArray[np.int64]:
            values = _integers(batch.column(name), missing)
            return values if every else values[kept]

        group, file = (group, file) if every else (group[kept], file[kept])
        moved = np.where(group <= WRITE, np.maximum(column("result", 0), 0), 0)
        thread = np.searchsorted(self._chunk.threads, column("tid", 0))
        return Calls(
            start_ns=column("start_ns", 0), duration_ns=np.maximum(column("duration_ns", 0), 0), group=group,
            kind=self._kind_of_file[file], thread=thread, file=file, offset=column("offset", -1), moved_bytes=moved,
        )  # fmt: skip


def stable_order(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort `key` (not negative), equal entries in their order; much faster below 65536."""
    # NumPy sorts 16-bit integers by radix.
    narrow = key.astype(np.uint16) if len(key) and key.max() < 1 << 16 else key
    return np.argsort(narrow, kind="stable")


def _integers(column: pa.Array, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing) if column.null_count else column
    numbers: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def _groups(op: pa.DictionaryArray, wanted: frozenset[str]) -> NDArray[np.int64]:
    names = [GROUP_OF_OP.get(name, "") for name in op.dictionary.to_pylist()]
    group_of_code = np.array([GROUPS.index(name) if name in wanted else -1 for name in names] + [-1], dtype=np.int64)
    return group_of_code[_integers(op.indices, missing=-1)]
