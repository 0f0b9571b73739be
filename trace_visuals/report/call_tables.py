"""Tables of a trace's calls by operation, by file and by process, accumulated batch by batch into data frames."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from iotwin.trace_store.columns import add_at
from iotwin.trace_store.schema import FILE_KINDS
from iotwin.trace_visuals.bins import Floats
from iotwin.trace_visuals.call_columns import OPEN, READ, SYNC, WAIT, WRITE, CallColumns, Ints
from iotwin.trace_visuals.histogram import LogHistogram

PERCENTILES = (0.5, 0.9, 0.99, 0.999)
_PERCENTILE_NAMES = ("p50_ns", "p90_ns", "p99_ns", "p99.9_ns")

# Smaller requests are usually limited by a device's request rate, larger ones by its bandwidth.
LARGE_BYTES = 64 * 1024


class OperationTable:
    """Calls, failures, bytes, time and latency percentiles by operation, for storage and for other files separately.

    `reads_ns` and `reads_bytes` sum time and bytes of storage reads: row 0 has reads below LARGE_BYTES, row 1 the larger ones.
    """

    def __init__(self) -> None:
        self.latency_ns, self.size_bytes = LogHistogram(), LogHistogram()
        self.reads_ns, self.reads_bytes = LogHistogram(), LogHistogram()
        self._group: dict[int, int] = {}
        self._failures = np.zeros(0, dtype=np.int64)

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls."""
        row = calls.op * 2 + ~calls.storage
        self.latency_ns.add(row, calls.duration_ns)
        moves = (calls.group == READ) | (calls.group == WRITE)
        self.size_bytes.add(row[moves], calls.size_bytes[moves])
        reads = np.flatnonzero((calls.group == READ) & calls.storage)
        large = (calls.size_bytes[reads] >= LARGE_BYTES).astype(np.int64)
        self.reads_ns.add(large, calls.duration_ns[reads])
        self.reads_bytes.add(large, calls.size_bytes[reads])
        failures = np.bincount(row[calls.result < 0], minlength=len(self._failures))
        failures[: len(self._failures)] += self._failures
        self._failures = failures
        rows, first = np.unique(row, return_index=True)
        self._group |= zip(rows.tolist(), calls.group[first].tolist(), strict=True)

    def later(self, other: "OperationTable") -> None:
        """Add the calls of `other`, in which the indices of operations are the same."""
        for name in ("latency_ns", "size_bytes", "reads_ns", "reads_bytes"):
            getattr(self, name).later(getattr(other, name))
        failures = np.zeros(max(len(self._failures), len(other._failures)), dtype=np.int64)
        for found in (self._failures, other._failures):
            failures[: len(found)] += found
        self._failures = failures
        self._group |= other._group

    def rows_of(self, group: int) -> list[int]:
        """Return the histogram rows of the storage calls in `group`, an index into call_columns.GROUPS."""
        return sorted(row for row, its_group in self._group.items() if its_group == group and row % 2 == 0)

    def frame(self, ops: list[str]) -> pd.DataFrame:
        """Return a row for each operation and kind of file (storage or not), most time first.

        Times are in ns; percentiles are exact to histogram.RELATIVE_ERROR.
        """
        names = ["op", "storage", "calls", "failures", "size_bytes", "p50_bytes", "time_ns", *_PERCENTILE_NAMES, "most_ns"]
        table = pd.DataFrame([self._row(row, ops) for row in self._group], columns=names)
        return table.sort_values("time_ns", ascending=False, ignore_index=True)

    def _row(self, row: int, ops: list[str]) -> tuple[Any, ...]:
        latency, sizes = self.latency_ns, self.size_bytes
        middle = sizes.percentile([row], 0.5) if self._group[row] in (READ, WRITE) else float("nan")
        failures = int(self._failures[row]) if row < len(self._failures) else 0
        percentiles = (latency.percentile([row], share) for share in PERCENTILES)
        return (ops[row // 2], row % 2 == 0, int(latency.counts[row].sum()), failures, sizes.total([row]), middle,
                latency.total([row]), *percentiles, latency.most([row]))  # fmt: skip


class _Sums:
    """A table with `rows` rows and named columns, whose cells are sums."""

    def __init__(self, names: tuple[str, ...], rows: int) -> None:
        self.columns: dict[str, Floats] = {name: np.zeros(rows) for name in names}

    def add(self, name: str, row: Ints, weight: Ints | None = None) -> None:
        add_at(self.columns[name], row, weight)

    def later(self, other: "_Sums") -> None:
        for name, column in self.columns.items():
            column += other.columns[name]


_FILE_SUMS = (
    "reads", "read_bytes", "read_ns", "writes", "written_bytes", "write_ns", "opens", "syncs", "sync_ns", "time_ns",
    "sequential_reads",
)  # fmt: skip


class ReportedFiles:
    """Sums, for each file, calls, bytes and time, and counts its sequential reads."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._sums = _Sums(_FILE_SUMS, count)
        self._first = np.full(count, np.iinfo(np.int64).max)
        self._last = np.full(count, np.iinfo(np.int64).min)
        self._read_to = np.full(count, -1, dtype=np.int64)  # offset at which the file's last read ended
        self._read_from = np.full(count, -1, dtype=np.int64)  # offset at which the file's first read began

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls. Calls without a file are left out."""
        calls = calls.pick((calls.file_id >= 0) & (calls.file_id < self._count))
        duration = calls.duration_ns
        names = (("reads", "read_bytes", "read_ns"), ("writes", "written_bytes", "write_ns"))
        for group, (count, size, time) in zip((READ, WRITE), names, strict=True):
            chosen = np.flatnonzero(calls.group == group)
            self._sums.add(count, calls.file_id[chosen])
            self._sums.add(size, calls.file_id[chosen], calls.size_bytes[chosen])
            self._sums.add(time, calls.file_id[chosen], duration[chosen])
        self._sums.add("opens", calls.file_id[(calls.group == OPEN) & (calls.result >= 0)])
        syncs = calls.group == SYNC
        self._sums.add("syncs", calls.file_id[syncs])
        self._sums.add("sync_ns", calls.file_id[syncs], duration[syncs])
        self._sums.add("time_ns", calls.file_id, duration)
        np.minimum.at(self._first, calls.file_id, calls.start_ns)
        np.maximum.at(self._last, calls.file_id, calls.end_ns)
        self._add_order(calls.pick((calls.group == READ) & (calls.offset >= 0) & (calls.size_bytes > 0)))

    def _add_order(self, reads: CallColumns) -> None:
        """Count reads that begin where the file's previous read ended, or at 0."""
        # numpy sorts 16-bit keys in linear time, and few traces have more than 65,536 files.
        key = reads.file_id.astype(np.uint16) if self._count <= 1 << 16 else reads.file_id
        order = np.argsort(key, kind="stable")
        file_id, offset = reads.file_id[order], reads.offset[order]
        end = offset + reads.size_bytes[order]
        same = np.concatenate(([False], file_id[1:] == file_id[:-1])) if len(order) else np.zeros(0, dtype=bool)
        before = np.where(same, np.concatenate(([0], end[:-1])) if len(order) else 0, self._read_to[file_id])
        # A read at offset 0 begins to read the file again, so it counts as sequential.
        self._sums.add("sequential_reads", file_id[(offset == before) | (offset == 0)])
        new = ~same & (self._read_to[file_id] < 0)
        self._read_from[file_id[new]] = offset[new]
        self._read_to[file_id] = end  # if a file occurs several times, numpy keeps the last assignment: the latest read

    def later(self, other: "ReportedFiles") -> None:
        """Add the calls of `other`, which come after these."""
        self._sums.later(other._sums)
        self._sums.add("sequential_reads", np.flatnonzero((other._read_from > 0) & (other._read_from == self._read_to)))
        self._first, self._last = np.minimum(self._first, other._first), np.maximum(self._last, other._last)
        self._read_from = np.where(self._read_to >= 0, self._read_from, other._read_from)
        self._read_to = np.where(other._read_to >= 0, other._read_to, self._read_to)

    def frame(self, kinds: NDArray[np.int8], extent_bytes: Ints) -> pd.DataFrame:
        """Return a row for each file with a call, most bytes moved first. Times are in ns, sizes in bytes.

        `kinds`: index in FILE_KINDS of the kind of each file. This object is empty afterwards, so that there is one copy.
        """
        columns: dict[str, NDArray[Any]] = dict(self._sums.columns)
        self._sums.columns.clear()
        moved, time = columns["read_bytes"] + columns["written_bytes"], columns["time_ns"]
        called = np.flatnonzero(self._last >= self._first)
        file_id = called[np.lexsort((-time[called], -moved[called]))]
        columns |= {"extent_bytes": extent_bytes, "first_ns": self._first, "last_ns": self._last, "moved_bytes": moved}
        found = {name: columns.pop(name)[file_id].astype(np.int64) for name in list(columns)}
        kind = pd.Categorical.from_codes(kinds[file_id], pd.Index(FILE_KINDS))
        return pd.DataFrame({"file_id": file_id, "kind": kind, **found}, copy=False)


class ProcessTable:
    """Sums, for each process, calls, bytes and time."""

    def __init__(self, pids: Ints) -> None:
        self._pids = pids
        self._sums = _Sums(("calls", "storage_calls", "read_bytes", "written_bytes", "storage_ns", "wait_ns"), len(pids))

    def add(self, calls: CallColumns) -> None:
        """Add a batch of calls. Only calls on storage files count for bytes and storage time."""
        row = np.searchsorted(self._pids, calls.pid)
        self._sums.add("calls", row)
        self._sums.add("wait_ns", row[calls.group == WAIT], calls.duration_ns[calls.group == WAIT])
        self._sums.add("storage_calls", row[calls.storage])
        self._sums.add("storage_ns", row[calls.storage], calls.duration_ns[calls.storage])
        for name, group in (("read_bytes", READ), ("written_bytes", WRITE)):
            chosen = np.flatnonzero(calls.storage & (calls.group == group))
            self._sums.add(name, row[chosen], calls.size_bytes[chosen])

    def later(self, other: "ProcessTable") -> None:
        """Add the calls of `other`."""
        self._sums.later(other._sums)

    def frame(self, processes: pd.DataFrame) -> pd.DataFrame:
        """Return a row for each process with a call, most storage time first. If a process is not in `processes`, its properties
        are NaN or None.
        """
        columns = {name: values.astype(np.int64) for name, values in self._sums.columns.items()}
        known = processes.drop_duplicates("pid", keep="last")
        known = known[["pid", "ppid", "comm", "command_line", "role", "start_ns", "exit_ns", "exit_status"]]
        table = pd.DataFrame({"pid": self._pids, **columns}).merge(known, on="pid", how="left")
        return table.sort_values(["storage_ns", "calls"], ascending=False, ignore_index=True)
