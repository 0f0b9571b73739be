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
    thread: NDArray[np.int64]  # 0, 1, ... in order of appearance
    file: NDArray[np.int64]  # file_id
    offset: NDArray[np.int64]  # bytes; -1 when not known
    moved_bytes: NDArray[np.int64]  # by a read or a write; 0 for other calls and for failed ones

    def where(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> "Calls":
        """Return the calls that a mask selects, or an index array in its order."""
        return Calls(*(column[selected] for column in vars(self).values()))


def storage_calls(trace: Trace, groups: frozenset[str] = frozenset(GROUPS)) -> Iterator[Calls]:
    """Yield the trace's calls of `groups` on files of FILE_KINDS, batch by batch in order of start.

    Raises IotwinError when a call is on a file that the files table lacks.
    """
    kinds = trace.files()["kind"].astype(object).to_numpy()
    kind_of_file = np.full(len(kinds) + 1, -1, dtype=np.int64)  # the last entry stands for calls without a file
    for index, kind in enumerate(FILE_KINDS):
        kind_of_file[:-1][kinds == kind] = index
    threads: dict[int, int] = {}
    for batch in trace.events(_COLUMNS, batch_rows=_BATCH_ROWS):
        group = _groups(batch.column("op"), groups)
        file = _integers(batch.column("file_id"), missing=-1)
        if len(file) and file.max() >= len(kinds):
            raise IotwinError(f"{trace.path}: files.parquet lacks files that calls are on: it is damaged; copy the trace again")
        kept = np.flatnonzero((group >= 0) & (kind_of_file[file] >= 0))
        if len(kept):
            yield _calls(batch, kept, group, file, kind_of_file, threads)


def stable_order(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort `key` (not negative), equal entries in their order; much faster below 65536."""
    # NumPy sorts 16-bit integers by radix.
    narrow = key.astype(np.uint16) if len(key) and key.max() < 1 << 16 else key
    return np.argsort(narrow, kind="stable")


def _calls(
    batch: pa.RecordBatch, kept: NDArray[np.int64], group: NDArray[np.int64], file: NDArray[np.int64],
    kind_of_file: NDArray[np.int64], threads: dict[int, int],
) -> Calls:  # fmt: skip
    every = len(kept) == batch.num_rows

    def column(name: str, missing: int) -> NDArray[np.int64]:
        values = _integers(batch.column(name), missing)
        return values if every else values[kept]

    group, file = (group, file) if every else (group[kept], file[kept])
    moved = np.where(group <= WRITE, np.maximum(column("result", 0), 0), 0)
    return Calls(
        start_ns=column("start_ns", 0), duration_ns=np.maximum(column("duration_ns", 0), 0), group=group, kind=kind_of_file[file],
        thread=_in_order_of_appearance(column("tid", 0), threads), file=file, offset=column("offset", -1), moved_bytes=moved,
    )  # fmt: skip


def _integers(column: pa.Array, missing: int) -> NDArray[np.int64]:
    filled = pc.fill_null(column, missing) if column.null_count else column
    numbers: NDArray[np.int64] = filled.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
    return numbers


def _groups(op: pa.DictionaryArray, wanted: frozenset[str]) -> NDArray[np.int64]:
    names = [GROUP_OF_OP.get(name, "") for name in op.dictionary.to_pylist()]
    group_of_code = np.array([GROUPS.index(name) if name in wanted else -1 for name in names] + [-1], dtype=np.int64)
    return group_of_code[_integers(op.indices, missing=-1)]


def _in_order_of_appearance(tid: NDArray[np.int64], threads: dict[int, int]) -> NDArray[np.int64]:
    known, first, inverse = np.unique(tid, return_index=True, return_inverse=True)
    for position in np.argsort(first):
        threads.setdefault(int(known[position]), len(threads))
    return np.array([threads[int(t)] for t in known], dtype=np.int64)[inverse]
