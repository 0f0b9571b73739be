"""The calls that a comparison reads, those on data-set and checkpoint files, as columns of numbers.

Calls on libraries, logs, pipes and sockets are left out, because a twin does not imitate them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.calls import CallDecoder, DecodedCalls
from iotwin.trace_store.chunks import Chunk
from iotwin.trace_store.reader import Trace

FILE_KINDS = ("dataset", "checkpoint")
GROUPS = ("read", "write", "open", "close", "sync", "map")
READ, WRITE, OPEN, CLOSE, SYNC, MAP = range(len(GROUPS))
_NAME = len(GROUPS)  # code that StorageCalls uses for calls that rename or remove a file
_REMOVALS = ("unlink", "unlinkat")

_COLUMNS = ("start_ns", "duration_ns", "op", "tid", "file_id", "offset", "result")
_BATCH_ROWS = 1 << 18


@dataclass(frozen=True)
class Calls:
    """Calls in order of start; every column has shape (n,)."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    group: NDArray[np.int64]  # index into GROUPS
    kind: NDArray[np.int64]  # kind of the file: index into FILE_KINDS
    thread: NDArray[np.int64]  # index of the thread, in order of tid
    file: NDArray[np.int64]  # file_id
    offset: NDArray[np.int64]  # bytes; -1 if unknown
    moved_bytes: NDArray[np.int64]  # bytes that the call read or wrote; 0 if it failed or is neither a read nor a write

    def where(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> "Calls":
        """Return the calls that a mask or an index array selects."""
        return Calls(*(column[selected] for column in vars(self).values()))


class StorageCalls:
    """Iterates over the calls on data-set and checkpoint files in a chunk of a trace, in batches, in order of start.

    Only calls of `groups`, a subset of GROUPS, are yielded.
    """

    def __init__(self, chunk: Chunk, groups: frozenset[str] = frozenset(GROUPS)) -> None:
        self._chunk = chunk
        # After the codes of GROUPS, the decoder has two more: renames and removals, and all other calls.
        self._is_wanted = np.array([group in groups for group in GROUPS] + [False, False])
        self._decoder = CallDecoder(Trace(chunk.path), _COLUMNS, (*GROUPS, "name"), FILE_KINDS)
        self.files = self._decoder.files
        self.removed_files = 0  # number of checkpoint files removed in the batches yielded so far

    def __iter__(self) -> Iterator[Calls]:
        """Yield each batch that has at least one call."""
        for decoded in self._decoder.read(parts=self._chunk.parts, batch_rows=_BATCH_ROWS):
            self.removed_files += self._removals(decoded)
            calls = self._calls(decoded)
            if len(calls.start_ns):
                yield calls

    def in_flight(self) -> Calls:
        """Return the calls of earlier chunks that end after this chunk begins."""
        return self._calls(self._decoder.in_flight(self._chunk))

    def _removals(self, decoded: DecodedCalls) -> int:
        named = decoded.where((decoded.group == _NAME) & (decoded.kind == FILE_KINDS.index("checkpoint")))
        ops = [index for index, op in enumerate(self._decoder.ops) if op in _REMOVALS]
        return int((np.isin(named.op, ops) & (named.column("result") >= 0)).sum())

    def _calls(self, decoded: DecodedCalls) -> Calls:
        decoded = decoded.where(self._is_wanted[decoded.group] & (decoded.kind >= 0))
        return Calls(
            start_ns=decoded.column("start_ns", 0),
            duration_ns=decoded.duration_ns(),
            group=decoded.group,
            kind=decoded.kind,
            thread=np.searchsorted(self._chunk.threads, decoded.column("tid", 0)),
            file=decoded.file_id,
            offset=decoded.column("offset"),
            moved_bytes=decoded.moved_bytes(decoded.group <= WRITE),
        )


def stable_order(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort the non-negative `key` and keep the order of equal entries."""
    # NumPy sorts 16-bit integers by radix, which is much faster.
    narrow = key.astype(np.uint16) if len(key) and key.max() < 1 << 16 else key
    return np.argsort(narrow, kind="stable")
