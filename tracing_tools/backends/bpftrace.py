"""Capture by bpftrace: run the script probes/io_events.bt, and convert its lines to records after the job.

This works on machines that have bpftrace and nothing else, not even a mounted tracefs. Each traced call takes about ten
microseconds longer, and adds a line of about 100 bytes.
"""

import io
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_new
from iotwin.common.processes.children import dying_with_us
from iotwin.common.untrusted_files import open_foreign, read_foreign
from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.raw import records
from iotwin.trace_store.raw.converted_records import ConvertedRecords
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.syscalls import CALLS, OPEN_KINDS, Kind
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.backends import tracefs
from iotwin.tracing_tools.backends.kernel_support import ebpf_unavailable_reason
from iotwin.tracing_tools.backends.kernel_types import KernelTypes
from iotwin.tracing_tools.probes import BPFTRACE_EVENTS
from iotwin.tracing_tools.targets.running_processes import is_asleep

_READY_S, _CATCH_UP_S, _STOP_S, _INTERRUPT_EVERY_S = 30.0, 60.0, 20.0, 0.5
_POLL_S = 0.02
_ENVIRONMENT = {"BPFTRACE_PERF_RB_PAGES": "4096", "BPFTRACE_STRLEN": "176"}  # longer strings would exceed an eBPF stack
_COLUMNS = (
    "call", "start", "duration", "result", "pid", "tid", "cpu", "fd", "a1", "a2", "a3", "a5", "vector", "position", "inode",
    "device", "generation", "mode", "flags",
)  # fmt: skip
_PIECE_BYTES = 1 << 24
_TEXT_FILE = "bpftrace.txt"  # in raw/; line 1 has the mark with which all other lines begin, and the ns to add to their times
_LONGEST_HEAD_BYTES = 64
_MOST_START_BYTES = 1 << 30  # limit of the text that bpftrace prints until its probes are attached
_SLEPT_NS = (
    1_000_000  # smaller differences of the clocks come from reading them one after the other, not from a sleep of the machine
)
_KIND_OF_CALL = np.zeros(1024, np.int64)
for _number, _kind in CALLS.values():
    _KIND_OF_CALL[_number] = _kind
_ESCAPE = re.compile(rb"\\x([0-9a-f]{2})")
_NOTE = (
    "captured by bpftrace: each call took some ten microseconds longer than untraced; components of paths beyond 175 bytes, "
    "and beyond 20 levels, are cut off"
)


def unavailable_reason() -> str | None:
    """Return why bpftrace cannot capture on this machine, None if it should work."""
    if reason := ebpf_unavailable_reason():
        return reason
    if not shutil.which("bpftrace"):
        return "bpftrace is not installed; install the package bpftrace"
    return tracefs.unavailable_reason()


class BpftraceBackend(Backend):
    """Captures by a bpftrace script on tracepoints, which filters calls by process tree."""

    name = "bpftrace"
    needs_command = True  # the script filters by the command's process tree
    follows_several = False
    unrecorded_groups = ("metadata", "mmap", "async", "block")

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.probes = ["raw_syscalls:sys_enter", "raw_syscalls:sys_exit", "sched:sched_process_{fork,exec,exit}"]
        self._notes.insert(0, _NOTE)
        self._mount_offset = KernelTypes().offset("mount", "mnt")
        self._mark = secrets.randbits(31)  # random, so that no path chosen by the job looks like a line of the script
        self._process: subprocess.Popen[bytes] | None = None
        self._text: Path | None = None

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return `command` unchanged. Store `raw` as the directory for the script's output."""
        self._text = raw / _TEXT_FILE
        return command

    def follow(self, pid: int) -> None:
        """Start the bpftrace script for the process tree of `pid`, and wait until its probes are attached."""
        if self._text is None:
            raise IotwinError("the bpftrace backend traces only a command that it starts itself")
        arguments = [str(pid), str(self._mount_offset), str(self._mark)]
        with open_new(self._text) as out:
            # bpftrace's clock is CLOCK_BOOTTIME, which runs while the machine sleeps; CLOCK_MONOTONIC does not.
            to_monotonic_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            out.write(b"%d %d\n" % (self._mark, to_monotonic_ns if abs(to_monotonic_ns) > _SLEPT_NS else 0))
            out.flush()
            self._process = subprocess.Popen(
                tracefs.with_tracefs(["bpftrace", "-B", "line", str(BPFTRACE_EVENTS), *arguments]),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env={**os.environ, **_ENVIRONMENT},
                start_new_session=True,  # Ctrl-C must reach the job but not the script
                preexec_fn=dying_with_us(signal.SIGKILL),  # the kernel detaches the probes of a dead bpftrace
            )
        deadline = time.monotonic() + _READY_S
        while b"\nREADY\n" not in _printed(self._text):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self._end()
                raise IotwinError(f"bpftrace cannot attach the probes: {_first_error(_printed(self._text))}")
            time.sleep(_POLL_S)

    def stop(self, recording: Recording | None) -> None:
        """End the bpftrace script after it has printed all events."""
        if self._process is None:
            return
        self._end()
        self._process = None
        super().stop(recording)

    def _end(self) -> None:
        """Interrupt the script until it has ended. bpftrace may miss a signal, so it receives several."""
        if self._process is None:
            return
        # A signal makes bpftrace drop events that it has not printed. Once bpftrace sleeps, it has printed all events.
        deadline = time.monotonic() + _CATCH_UP_S
        while self._process.poll() is None and not is_asleep(self._process.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        deadline = time.monotonic() + _STOP_S
        while self._process.poll() is None and time.monotonic() < deadline:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_INTERRUPT_EVERY_S)
            except subprocess.TimeoutExpired:
                continue
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()


def _first_error(output: bytes) -> str:
    """Return the first error in `output`, which bpftrace printed, except errors about RLIMIT_MEMLOCK, which do not matter."""
    lines = [line for line in output.decode(errors="replace").splitlines() if "RLIMIT_MEMLOCK" not in line]
    return next((line for line in lines if "error" in line.lower()), "it gave no reason in time")


def _printed(text: Path) -> bytes:
    return read_foreign(text, _MOST_START_BYTES, follow=False)


def convert(raw: Path, manifest: Manifest) -> None:
    """Convert the lines that the script printed to records. A call that the kernel counted but no line reports counts as lost."""
    try:
        file = open_foreign(raw / _TEXT_FILE, follow=False)
    except FileNotFoundError:
        return
    with file, ConvertedRecords(raw) as made:
        head = file.readline(_LONGEST_HEAD_BYTES).split()
        if len(head) != 2:
            return
        lines = _Lines(int(head[0]), int(head[1]))
        whole, rest = b"", b""
        while piece := file.read(_PIECE_BYTES):
            whole, _, rest = (rest + piece).rpartition(b"\n")
            made.append_events(lines.events(whole))
            lines.gather_names(whole)
        made.append_names(b"".join(lines.names()))
    if found := re.search(rb"@seen: (\d+)", whole + b"\n" + rest):
        manifest.seen = int(found[1]) - lines.anonymous_maps
        lost = manifest.seen - made.events_written
        manifest.lost = {"perf_buffer": lost} if lost > 0 else {}


class _Lines:
    """Converts the lines that the script io_events.bt printed to records. The script describes the lines' format."""

    def __init__(self, mark: int, to_monotonic_ns: int) -> None:
        self._shift_ns = to_monotonic_ns
        self._event = re.compile(rb"^%d 1 ([-0-9 ]+)$" % mark, re.MULTILINE)
        self._other = re.compile(rb"^%d ([2-8]) (.*(?:\n(?!%d |@|READY|Lost ).*)*)" % (mark, mark), re.MULTILINE)
        self._named: list[tuple[int, bytes]] = []
        self._pids: set[int] = set()
        self.anonymous_maps = 0  # number of mmap calls without a file: the script counts them, but no trace contains them

    def events(self, text: bytes) -> NDArray[np.void]:
        """Return one event record (records.EVENT) for each call in `text`; no Python runs per call."""
        content = b"\n".join(self._event.findall(text))
        if not content:
            return np.zeros(0, records.EVENT)
        options = csv.ReadOptions(column_names=list(_COLUMNS)), csv.ParseOptions(delimiter=" ")
        types = csv.ConvertOptions(column_types=dict.fromkeys(_COLUMNS, pa.int64()))
        table = csv.read_csv(io.BytesIO(content), *options, types)
        column = {name: table[name].to_numpy() for name in _COLUMNS}
        kind = _KIND_OF_CALL[column["call"]]
        kept = ~((kind == Kind.MAP) & (column["fd"] < 0))
        self.anonymous_maps += int((~kept).sum())
        column = {name: values[kept] for name, values in column.items()}
        self._pids.update(np.unique(column["pid"]).tolist())
        return self._records(column, kind[kept])

    def _records(self, column: dict[str, NDArray[np.int64]], kind: NDArray[np.int64]) -> NDArray[np.void]:
        out = np.zeros(len(kind), records.EVENT)
        result, file_type = column["result"], column["mode"] >> 12
        seekable = (file_type == records.TYPE_REGULAR) | (file_type == records.TYPE_BLOCK)
        before = np.where(seekable, column["position"] - np.maximum(result, 0), -1)
        positioned = (kind == Kind.POSITIONED) | ((kind == Kind.POSITIONED_VECTOR) & (column["a3"] != -1))
        moving = np.isin(kind, (Kind.READ_WRITE, Kind.VECTOR, Kind.POSITIONED_VECTOR))
        sized = np.isin(kind, (Kind.READ_WRITE, Kind.POSITIONED))
        vectors = np.isin(kind, (Kind.VECTOR, Kind.POSITIONED_VECTOR))
        flags = column["flags"]
        raw_flags = file_type | np.where(flags & os.O_DIRECT, records.RAW_FLAG_DIRECT, 0)
        raw_flags |= np.where(flags & os.O_APPEND, records.RAW_FLAG_APPEND, 0)
        raw_flags |= np.where(flags & os.O_ACCMODE, records.RAW_FLAG_WRITABLE, 0)
        out["header"] = records.EVENT.itemsize - records.RING_HEADER_BYTES
        out["start_ns"], out["duration_ns"], out["result"] = column["start"] + self._shift_ns, column["duration"], result
        out["offset"] = np.select([positioned, moving, kind == Kind.MAP], [column["a3"], before, column["a5"]], -1)
        out["requested"] = np.select(
            [sized, vectors, kind == Kind.MAP, kind == Kind.OPEN, kind == Kind.OPEN_AT, kind == Kind.CREATE],
            [column["a2"], column["vector"], column["a1"], column["a1"], column["a2"], os.O_CREAT | os.O_WRONLY | os.O_TRUNC],
            0,
        ).astype(np.uint64)
        for name in ("inode", "pid", "tid", "device", "generation", "fd"):
            out[name] = column[name].astype(out.dtype[name])
        out["call_flags_cpu"] = column["call"] | raw_flags << 10 | column["cpu"] << 18
        # The name record of an open needs the file's identity, which only the line of the event has.
        opened = np.isin(kind, OPEN_KINDS) & (result >= 0)
        for i in np.flatnonzero(opened).tolist():
            values = (int(column[name][i]) for name in ("tid", "start", "inode", "device", "generation", "mode"))
            self._named.append((0, b"%d %d %d %d %d %d" % tuple(values)))
        return out

    def gather_names(self, text: bytes) -> None:
        """Store the lines of `text` about paths and processes, for `names`. They are few, so a loop over them is fast enough."""
        self._named += [(int(number), content) for number, content in self._other.findall(text)]

    def names(self) -> list[bytes]:
        """Return the name records of all lines that `gather_names` stored."""
        opened: dict[tuple[int, int], dict[str, int]] = {}
        for number, content in self._named:
            if number == 0:
                tid, start, inode, device, generation, mode = map(int, content.split())
                opened[tid, start] = {"inode": inode, "device": device, "generation": generation, "mode": mode}
            elif number == 7:
                self._pids.add(int(content.split()[0]))
        found: list[bytes] = []
        paths: dict[tuple[int, int], _Path] = {}
        for number, content in self._named:
            if number == 2:
                path = _Path(*map(int, content.split()))
                paths[path.tid, path.start_ns] = path
            elif number in (3, 4, 8):
                thread, began, value = content.split(b" ", 2)
                if of_call := paths.get((int(thread), int(began))):
                    of_call.parts.append((number, value))
            elif number:
                found += self._life_record(number, content)
        for path in paths.values():
            found += self._path_records(path, opened)
        return found

    def _path_records(self, path: "_Path", opened: dict[tuple[int, int], dict[str, int]]) -> list[bytes]:
        base = b"/" + b"/".join(reversed([_unescape(value) for number, value in path.parts if number == 3]))
        common = {"time_ns": path.start_ns + self._shift_ns, "pid": path.pid, "tid": path.tid, "parent": 0}
        nothing = {"inode": 0, "device": 0, "generation": 0, "mode": 0, "size": 0}
        if path.kind in OPEN_KINDS and path.result >= 0:
            size = next((int(value) for number, value in path.parts if number == 8), 0)
            identity = nothing | opened.get((path.tid, path.start_ns), {}) | {"size": size}
            return [records.pack_name(records.NameRecord(type=records.NAME_OPENED, result=0, text=base, **common, **identity))]
        given = [value for number, value in path.parts if number == 4]
        texts = [name if name.startswith(b"/") else base.rstrip(b"/") + b"/" + name for name in given]
        call = {**common, **nothing, "type": records.NAME_GIVEN, "result": path.result}
        return [records.pack_name(records.NameRecord(**call, text=text)) for text in texts]

    def _life_record(self, number: int, content: bytes) -> list[bytes]:
        pid, parent, time_ns, rest = content.split(b" ", 3)
        type_ = {5: records.NAME_FORK, 6: records.NAME_EXEC, 7: records.NAME_EXIT}[number]
        if type_ == records.NAME_FORK and int(pid) not in self._pids:
            return []  # a thread, not a process
        status, _, comm = rest.partition(b" ") if type_ == records.NAME_EXIT else (pid, b"", rest)
        text = _unescape(rest) if type_ == records.NAME_EXEC else comm
        return [records.pack_name(records.NameRecord(
            time_ns=int(time_ns) + self._shift_ns, type=type_, pid=int(pid), tid=int(pid), parent=int(parent), result=int(status),
            inode=0, device=0, generation=0, mode=0, size=0, text=text,
        ))]  # fmt: skip


class _Path:
    """A call that names a path. `parts`: (number, text) of each printed line with a part of the path."""

    def __init__(self, tid: int, start_ns: int, result: int, pid: int, kind: int) -> None:
        self.tid, self.start_ns, self.result, self.pid, self.kind = tid, start_ns, result, pid, kind
        self.parts: list[tuple[int, bytes]] = []


def _unescape(text: bytes) -> bytes:
    """Return the bytes that bpftrace printed by %r as `text`."""
    return _ESCAPE.sub(lambda match: bytes([int(match[1], 16)]), text)
