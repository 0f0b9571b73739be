"""Convert imported calls to events of a trace, and collect their operations, files and processes."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.trace_store import schema
from iotwin.trace_store.columns import column, labels, numbers, rows_table
from iotwin.trace_store.file_kinds import file_kind
from iotwin.trace_store.importers.sorted_calls import Runs
from iotwin.trace_store.raw.records import TYPE_REGULAR


class ImportedEvents:
    """The events of imported calls. Their tally by operation, process and file is complete once all `parts` have been read."""

    def __init__(self, calls: Runs) -> None:
        self._calls = calls
        self._tallies: list[NDArray[np.int64]] = []
        self._extents: list[tuple[int, int]] = []

    def parts(self) -> list[Iterator[pa.Table]]:
        """Return all events (schema.EVENTS) in order of start, divided into parts that threads may read concurrently."""
        return [map(self._events, part) for part in self._calls.parts()]

    @property
    def extent(self) -> tuple[int, int]:
        """The start of the first event and the latest end of an event, in ns."""
        return min(first for first, _ in self._extents), max(last for _, last in self._extents)

    def _events(self, chunk: pa.Table) -> pa.Table:
        start, duration = (numbers(chunk[name]) for name in ("start_ns", "duration_ns"))
        self._extents.append((int(start[0]), int((start + duration).max())))
        self._tallies.append(_tally(chunk))
        rows, file_id = chunk.num_rows, numbers(chunk["path"])
        op = numbers(chunk["op"])
        columns = {
            "op": labels(op.astype(np.int16), self._calls.ops, op < 0),
            "file_id": column(file_id, pa.int32(), file_id < 0),
            "flags": column(numbers(chunk["flags"]), pa.int32()),
            "cpu": pa.nulls(rows, pa.int16()),
        }
        arrays = [columns[name] if name in columns else chunk[name] for name in schema.EVENTS.names]
        return pa.table(arrays, schema=schema.EVENTS)

    def counts(self) -> dict[str, int]:
        """Return the number of events by operation."""
        op, _, _, calls, _ = self._sums()
        totals = np.bincount(op, weights=calls, minlength=len(self._calls.ops))
        return {name: int(total) for name, total in zip(self._calls.ops, totals, strict=True) if total}

    def pids(self) -> list[int]:
        """Return the pids of the processes that made calls."""
        return list(dict.fromkeys(self._sums()[1].tolist()))

    def files(self) -> tuple[pa.Table, dict[int, int]]:
        """Return (the files table (schema.FILES), the number of data-set bytes that each process read, by pid)."""
        op, pid, path, _, moved = self._sums()
        paths = self._calls.paths
        is_read, is_write = (
            np.array([name in group for name in self._calls.ops], bool)[op] & (path >= 0)
            for group in (schema.READ_OPS, schema.WRITE_OPS)
        )
        sums = [np.bincount(path[chosen], weights=moved[chosen], minlength=len(paths)) for chosen in (is_read, is_write)]
        kinds = [
            file_kind(path, TYPE_REGULAR if path.startswith("/") or read or written else 0, int(read), int(written), False)
            for path, read, written in zip(paths, *sums, strict=True)
        ]
        rows = [
            {"file_id": index, "path": path, "kind": kind} for index, (path, kind) in enumerate(zip(paths, kinds, strict=True))
        ]
        table = rows_table(rows, schema.FILES)
        of_dataset = np.array([kind == "dataset" for kind in kinds] + [False], bool)[path] & is_read
        pids, index_of_pid = np.unique(pid[of_dataset], return_inverse=True)
        sizes = np.bincount(index_of_pid, weights=moved[of_dataset], minlength=len(pids)).astype(int)
        return table, dict(zip(pids.tolist(), sizes.tolist(), strict=True))

    def _sums(self) -> NDArray[np.int64]:
        """Return an array of five rows: index of operation, pid, index of path (-1: none), number of calls, bytes moved.

        Each column is the tally of one (operation, process, file) in one chunk of events.
        """
        return np.concatenate([np.empty((5, 0), np.int64), *self._tallies], axis=1)


def _tally(chunk: pa.Table) -> NDArray[np.int64]:
    op, pid, path, result = (numbers(chunk[name]) for name in ("op", "pid", "path", "result"))
    key, moved = pid.astype(np.int64) << 32 | path.astype(np.uint32), np.maximum(result, 0)
    tallies = []
    for code_of_op in np.flatnonzero(np.bincount(op + 1)) - 1:
        of_op = op == code_of_op
        # Arrow finds distinct keys by hashing, which is faster than np.unique, which sorts.
        known = column(key[of_op], pa.int64()).dictionary_encode()
        code, combination = numbers(known.indices), numbers(known.dictionary)
        sums = np.bincount(code), np.bincount(code, moved[of_op]).astype(np.int64)
        file = combination.astype(np.uint32).view(np.int32).astype(np.int64)
        tallies.append(np.stack([np.full(len(combination), code_of_op), combination >> 32, file, *sums]))
    return np.concatenate(tallies, axis=1)
