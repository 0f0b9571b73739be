"""From sorted calls to events, and what the other tables need to know of them: the operations, files and processes in use."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.classify import file_kind
from tracing_tools.trace.columns import column
from tracing_tools.trace.importers.runs import Runs
from tracing_tools.trace.records import TYPE_REGULAR

_PLAIN = pa.schema([(f.name, pa.string() if f.name == "kind" else f.type) for f in schema.FILES])


class Use:
    """The events of the calls, and a tally of them by operation, process and file that grows as they are yielded."""

    def __init__(self, calls: Runs) -> None:
        """Take the calls; ask for anything else only after the last event."""
        self._calls = calls
        self._tallies: list[pa.Table] = []
        self._extents: list[tuple[int, int]] = []

    def parts(self) -> list[Iterator[pa.Table]]:
        """Return the events (schema.EVENTS) in order of start, in parts that may be read at the same time."""
        return [map(self._events, part) for part in self._calls.parts()]

    @property
    def extent(self) -> tuple[int, int]:
        """The first start and the last end."""
        return min(first for first, _ in self._extents), max(last for _, last in self._extents)

    def _events(self, chunk: pa.Table) -> pa.Table:
        start, duration = (chunk[name].to_numpy() for name in ("start_ns", "duration_ns"))
        self._extents.append((int(start[0]), int((start + duration).max())))
        self._tallies.append(_tally(chunk))
        rows, file_id = chunk.num_rows, chunk["path"].to_numpy()
        op = chunk["op"].to_numpy()
        columns = {
            "op": pa.DictionaryArray.from_arrays(column(op.astype(np.int16), pa.int16(), op < 0), self._calls.ops),
            "file_id": column(file_id, pa.int32(), file_id < 0), "flags": column(np.zeros(rows, np.int32), pa.int32()),
            "cpu": pa.nulls(rows, pa.int16()),
        }  # fmt: skip
        arrays = [columns[name] if name in columns else chunk[name] for name in schema.EVENTS.names]
        return pa.table(arrays, schema=schema.EVENTS)

    def counts(self) -> dict[str, int]:
        """Return the events by operation."""
        op, _, _, calls, _ = self._sums()
        totals = np.bincount(op, weights=calls, minlength=len(self._calls.ops))
        return {name: int(total) for name, total in zip(self._calls.ops, totals, strict=True) if total}

    def pids(self) -> list[int]:
        """Return the processes that made calls."""
        return list(dict.fromkeys(self._sums()[1].tolist()))

    def files(self) -> tuple[pa.Table, dict[int, int]]:
        """Return the files table (schema.FILES), and the data-set bytes that each process read."""
        op, pid, path, _, moved = self._sums()
        paths = self._calls.paths
        is_read, is_write = (
            np.array([name in group for name in self._calls.ops], bool)[op] & (path >= 0)
            for group in (schema.READ_OPS, schema.WRITE_OPS)
        )
        sums = [np.bincount(path[mine], weights=moved[mine], minlength=len(paths)) for mine in (is_read, is_write)]
        kinds = [
            file_kind(path, TYPE_REGULAR if path.startswith("/") or read or written else 0, int(read), int(written), False)
            for path, read, written in zip(paths, *sums, strict=True)
        ]
        nothing: list[None] = [None] * len(paths)
        known = {"file_id": range(len(paths)), "path": paths, "kind": kinds}
        table = pa.table({name: known.get(name, nothing) for name in _PLAIN.names}, schema=_PLAIN).cast(schema.FILES)
        of_dataset = np.array([kind == "dataset" for kind in kinds] + [False], bool)[path] & is_read
        pids, place = np.unique(pid[of_dataset], return_inverse=True)
        sizes = np.bincount(place, weights=moved[of_dataset], minlength=len(pids)).astype(int)
        return table, dict(zip(pids.tolist(), sizes.tolist(), strict=True))

    def _sums(self) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
        """Return operations, processes, files (-1: none), and the calls and bytes of each combination of them."""
        whole = pa.concat_tables(self._tallies).group_by(["op", "pid", "path"], use_threads=False)
        table = whole.aggregate([("calls", "sum"), ("moved", "sum")])
        op, pid, path, calls, moved = (table[name].to_numpy() for name in ("op", "pid", "path", "calls_sum", "moved_sum"))
        return op, pid, path, calls, moved


def _tally(chunk: pa.Table) -> pa.Table:
    moved = np.maximum(chunk["result"].to_numpy(), 0)
    keys = chunk.select(["op", "pid", "path"]).append_column("moved", column(moved, pa.int64()))
    counted = keys.group_by(["op", "pid", "path"], use_threads=False).aggregate([([], "count_all"), ("moved", "sum")])
    return counted.rename_columns(["op", "pid", "path", "calls", "moved"])
