"""The calls that a comparison reads, those on data-set and checkpoint files, as columns of numbers.

Calls on libraries, logs, pipes and sockets are left out, because a twin does not imitate them.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store import fold, schema
from iotwin.trace_store.fold import Events

FILE_KINDS = schema.FILE_KINDS[:2]  # data set and checkpoints
GROUPS = fold.GROUPS[:6]
READ, WRITE, OPEN, CLOSE, SYNC, MAP = range(len(GROUPS))
_REMOVALS = ("unlink", "unlinkat")

COLUMNS = ("start_ns", "duration_ns", "op", "tid", "file_id", "offset", "result")


@dataclass(frozen=True)
class Calls:
    """Calls in order of start; every column has shape (n,)."""

    start_ns: NDArray[np.int64]
    duration_ns: NDArray[np.int64]
    group: NDArray[np.int64]  # operation: index into GROUPS
    kind: NDArray[np.int64]  # kind of the file: index into FILE_KINDS
    thread: NDArray[np.int64]  # index of the thread, in order of tid
    file: NDArray[np.int64]  # file_id
    offset: NDArray[np.int64]  # bytes; -1 if unknown
    moved_bytes: NDArray[np.int64]  # bytes that the call read or wrote; 0 if it failed or is neither a read nor a write

    def where(self, selected: NDArray[np.bool_] | NDArray[np.int64]) -> "Calls":
        """Return the calls that a mask or an index array selects."""
        return Calls(*(column[selected] for column in vars(self).values()))


class CallSelection:
    """Selects the calls on data-set and checkpoint files from events."""

    def __init__(self, threads: NDArray[np.int64], groups: frozenset[str] = frozenset(GROUPS)) -> None:
        """`threads`: the thread ids of the whole trace, sorted. `groups`, a subset of GROUPS: the calls to select."""
        self._threads = threads
        self._is_wanted = np.array([group in groups for group in fold.GROUPS])

    def of(self, events: Events) -> Calls:
        """Return the selected calls among `events`."""
        wanted = self._is_wanted[events.group] & (events.kind >= 0) & (events.kind < len(FILE_KINDS))
        rows = slice(None) if wanted.all() else np.flatnonzero(wanted)
        return Calls(
            start_ns=events.column("start_ns")[rows],
            duration_ns=events.duration_ns[rows],
            group=events.group[rows],
            kind=events.kind[rows],
            thread=np.searchsorted(self._threads, events.column("tid")[rows]),
            file=events.file_id[rows],
            offset=events.column("offset")[rows],
            moved_bytes=events.moved_bytes[rows],
        )


def removals(events: Events) -> int:
    """Return how many of `events` remove a checkpoint file."""
    named = np.flatnonzero((events.group == fold.NAME) & (events.kind == FILE_KINDS.index("checkpoint")))
    ops = [index for index, op in enumerate(events.decoder.ops) if op in _REMOVALS]
    return int((np.isin(events.op[named], ops) & (events.result[named] >= 0)).sum())


def stable_order(key: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the indices that sort the non-negative `key` and keep the order of equal entries."""
    # NumPy sorts 16-bit integers by radix, which is much faster.
    narrow = key.astype(np.uint16) if len(key) and key.max() < 1 << 16 else key
    return np.argsort(narrow, kind="stable")
