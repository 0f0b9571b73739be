"""Made-up traces call by call, for tests of what a fit sees in a job of any shape."""

from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from iotwin.trace_store import schema
from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target
from iotwin.trace_store.reader import Trace
from iotwin.trace_store.writer import write_events, write_tables
from tests.synthetic import MILLISECOND, SECOND, event_table

START_NS = 5 * SECOND


@dataclass
class Made:
    """A trace in the making. Times are milliseconds from the job's start."""

    exit_status: int = 0
    rows: list[tuple] = field(default_factory=list)
    files: list[dict] = field(default_factory=list)
    processes: list[dict] = field(default_factory=list)
    phases: list[dict] = field(default_factory=list)

    def file(self, path: str, kind: str = "dataset", size: int = 0) -> int:
        """Add a file and return its id."""
        number = len(self.files)
        self.files.append({
            "file_id": number, "device": 64, "inode": 100 + number, "generation": 1, "path": path, "renamed_to": None,
            "container": None, "size_bytes": size, "kind": kind, "host": None,
        })  # fmt: skip
        return number

    def process(self, pid: int, parent: int, role: str, begin_ms: float = 0, end_ms: float = 1e6) -> int:
        """Add a process and return its pid."""
        self.processes.append({
            "pid": pid, "ppid": parent, "namespace_pid": pid, "comm": "python", "command_line": "python job.py", "role": role,
            "start_ns": _at(begin_ms), "exit_ns": _at(end_ms), "exit_status": 0, "container": None, "host": None,
        })  # fmt: skip
        return pid

    def call(
        self,
        ms: float,
        pid: int,
        op: str,
        file: int,
        offset: int | None = None,
        size: int = 0,
        took_ms: float = 0.1,
        tid: int | None = None,
        flags: int = 0,
    ) -> float:
        """Add a call (file -1: on none) of the thread `tid` (None: the main one) and return when it ends."""
        result, tid = size if size else 5, tid or pid
        self.rows.append(
            (
                _at(ms),
                _at(ms + took_ms) - _at(ms),
                op,
                pid,
                tid,
                None if file < 0 else file,
                5,
                offset,
                size or None,
                result,
                flags,
                0,
            )
        )
        return ms + took_ms

    def read_file(self, ms: float, pid: int, file: int, part: int = 1 << 16) -> float:
        """Open a file, read it to its end and close it; return when that is done."""
        size = self.files[file]["size_bytes"]
        ms = self.call(ms, pid, "openat", file)
        for offset in range(0, size, part):
            ms = self.call(ms, pid, "read", file, offset, min(part, size - offset))
        return self.call(ms, pid, "close", file)

    def write_file(self, ms: float, pid: int, path: str, size: int, tid: int | None = None, syncs: bool = False) -> float:
        """Write a checkpoint, by the thread `tid` (None: the main one); return when that is done."""
        file = self.file(path, "checkpoint")
        ms = self.call(ms, pid, "openat", file, tid=tid, flags=schema.FLAG_CREATE | schema.FLAG_WRITABLE)
        ms = self.call(ms, pid, "write", file, 0, size, 2, tid=tid)
        ms = self.call(ms, pid, "fsync", file, tid=tid) if syncs else ms
        return self.call(ms, pid, "close", file, tid=tid)

    def phase(self, name: str, begin_ms: float, end_ms: float) -> None:
        """Add a phase that the job logged."""
        times = {"start_ns": _at(begin_ms), "end_ns": _at(end_ms)}
        self.phases.append({"phase": name, **times, "rank": 0, "epoch": None, "step": None})

    def trace(self, path: Path) -> Trace:
        """Write the trace and return it."""
        events = event_table(self.rows)
        end_ns = max(row[0] + row[1] for row in self.rows) + MILLISECOND
        manifest = Manifest(
            status="complete",
            backend="synthetic",
            tool_version="test",
            host=Host("testhost", "6.1.0", 2, 8 << 30, "x86_64", "ext4"),
            target=Target(command=["python"], root_pid=1000),
            clock=[ClockPair(time_ns, 1_700_000_000 * SECOND + time_ns, 100) for time_ns in (START_NS, end_ns)],
            counts={},
            start_ns=START_NS,
            end_ns=end_ns,
            exit_status=self.exit_status,
        )
        manifest.events = write_events(path / "events.parquet", [events])
        tables = [_table(rows, kind) for rows, kind in ((self.files, schema.FILES), (self.processes, schema.PROCESSES))]
        write_tables(path, manifest, *tables, _table(self.phases, schema.PHASES), {}, None, None)
        return Trace(path)


def _at(ms: float) -> int:
    return START_NS + int(ms * MILLISECOND)


def _table(rows: list[dict], expected: pa.Schema) -> pa.Table:
    kinds = {f.name: pa.string() if pa.types.is_dictionary(f.type) else f.type for f in expected}
    return pa.table({name: pa.array([row[name] for row in rows], type=kind) for name, kind in kinds.items()}).cast(expected)
