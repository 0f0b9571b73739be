"""Capture by strace, without root or eBPF, exactly but slowly. Tests compare the other backends with this one.

strace writes text while the job runs; afterwards the text is converted to records. strace prints no offsets, so they are computed
from earlier calls. It prints no devices and inodes, so they are looked up by path.
"""

import contextlib
import functools
import os
import re
import shutil
import signal
import stat
import threading
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.files import write_whole
from iotwin.common.untrusted_files import open_foreign, read_foreign_text
from iotwin.trace_store import strace_text as text
from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.raw import records
from iotwin.trace_store.raw.converted_records import ConvertedRecords
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.strace_replay import FOLLOWED, FORKS, Replay, command_line, mapped
from iotwin.trace_store.syscalls import CALLS, OPEN_KINDS, Kind, calls_of
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.backends.job_directory import make_for_job, make_job_directory
from iotwin.tracing_tools.targets.running_processes import processes_called_with

# Kinds of calls that this backend does not record, as it does not parse their arguments.
_NOT_IN_TEXT = (Kind.SEND, Kind.COPY, Kind.MAPPED, Kind.AIO_SUBMIT, Kind.AIO_COLLECT)
_DIRECTORY, _FILE = "strace", "thread"  # strace writes raw/strace/thread.TID for each thread
_CUT_OFF = (
    "strace ended before the command, as at the command's limit on file sizes (ulimit -f), within which it writes,"
    " or without an inode for another file: what came later is not in the trace"
)
_WATCH_S = 0.5
_LAST_LINE_BYTES = 1 << 9  # more than the length of a thread's last line, which has no arguments
_LOST = (
    "strace's text of {} threads is cut off, as by a full disk or a limit on file sizes: each lost one call at least,"
    " and one call each is counted as lost"
)
_CALLS_FILE = "strace.calls"  # names of the calls to record; strace also prints other calls, for `Replay` only


def unavailable_reason() -> str | None:
    """Return why strace cannot capture on this machine, None if it can."""
    return None if shutil.which("strace") else "strace is not installed; install the package strace"


class StraceBackend(Backend):
    """Captures by ptrace. Each traced call stops the job twice, so recorded durations include strace's own time."""

    name = "strace"
    needs_command = True  # strace follows the command's process tree
    unrecorded_groups = ("mmap", "async", "block")

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.probes = ["ptrace"]
        self._has_cgroup = bool(scope.cgroup_id)
        self._output = b""
        self._text = Path()
        self._roots: list[int] = []  # pids of the commands
        self._watch: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._notes.insert(0, "captured by strace: inode numbers were looked up after the run, calls took longer than untraced")
        self._calls = [name for name, (_, kind) in calls_of(scope.detail).items() if kind not in _NOT_IN_TEXT]

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` under strace, one text file per thread."""
        calls = ",".join(dict.fromkeys((*self._calls, *FOLLOWED)))
        if not self._text.name:
            write_whole(raw / _CALLS_FILE, ",".join(self._calls).encode())
            self._text = make_job_directory(raw, _DIRECTORY) / _FILE
        if not self._has_cgroup:
            self._output = os.fsencode(self._text)
        return [
            # With -D, strace is not the command's parent, so the command continues if strace is killed.
            "strace", "-D", "-ff", "-q", "-y", "-s", "64", "--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns",
            "-e", "signal=none", "-e", f"trace={calls}", "-o", str(self._text), "--", *command,
        ]  # fmt: skip

    def follow(self, pid: int) -> None:
        """Create the text file of the command's first thread. If strace could not create it, the command would hang.

        Raises OSError if the disk is full.
        """
        make_for_job(self._text.with_name(f"{_FILE}.{pid}"))
        self._roots.append(pid)
        if self._watch is None:
            self._watch = threading.Thread(target=self._end_when_stuck, daemon=True)
            self._watch.start()

    def _end_when_stuck(self) -> None:
        """Until `stop` is called, kill strace if the file system has no inode left for a new thread's text.

        strace would block the new thread, and so the job, for ever. Without strace, the job continues.
        """
        while not self._is_stopped.wait(_WATCH_S):
            with contextlib.suppress(OSError):  # strace has already ended
                room = os.statvfs(self._text.parent)
                straces = processes_called_with(os.fsencode(self._text)) if room.f_files and not room.f_ffree else []
                if not set(straces).intersection(self._roots):  # a root is strace until it executes the command
                    for pid in straces:
                        os.kill(pid, signal.SIGKILL)

    def strays(self) -> dict[int, bool]:
        """Return {} if there is a cgroup. Otherwise return the pid of strace, which ends after the job's last process."""
        return dict.fromkeys(processes_called_with(self._output), True) if self._output else {}

    def stop(self, recording: Recording | None) -> None:
        """End the thread that checks for free inodes. strace itself ends with the command."""
        self._is_stopped.set()
        if self._watch is not None:
            self._watch.join()
        super().stop(recording)


def convert(raw: Path, manifest: Manifest) -> None:
    """Convert strace's text to records. Raises IotwinError if `manifest` has no clock reading by which to convert the times."""
    if not (raw / _CALLS_FILE).exists():
        return
    if not manifest.clock:
        raise IotwinError("the recording holds no reading of the clocks, without which strace's times mean nothing")
    # The job's user can write to this directory, so files with other names are ignored.
    paths = [path for path in (raw / _DIRECTORY).glob(f"{_FILE}.*") if path.suffix[1:].isdecimal()]
    calls = sorted(_calls_in(paths), key=lambda call: (call.start_ns, call.name == "exit"))
    clock = manifest.clock[-1]
    replay = StraceRecords(clock.monotonic_ns - clock.realtime_ns, read_foreign_text(raw / _CALLS_FILE, follow=False).split(","))
    events = [event for call in calls for event in replay.apply(call)]
    with ConvertedRecords(raw) as made:
        made.append_names(b"".join(replay.names))
        made.append_events(np.array(events, records.EVENT) if events else np.zeros(0, records.EVENT))
    if manifest.exit_status is not None and not any(
        call.tid == manifest.target.root_pid and call.name == "exit" for call in calls
    ):
        manifest.notes.append(_CUT_OFF)
    cut_off = sum(_is_cut_off(path) for path in paths)
    if cut_off:
        manifest.notes.append(_LOST.format(cut_off))
        manifest.lost = {"text": cut_off}


def _calls_in(paths: list[Path]) -> Iterator[text.Call]:
    for path in paths:
        with open_foreign(path, follow=False) as file:
            yield from text.parse_lines(int(path.suffix[1:]), file)


def _is_cut_off(path: Path) -> bool:
    with open_foreign(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINE_BYTES))
        lines = file.readlines()
    return not (lines and text.is_last(lines[-1])) and not Path(f"/proc/{path.suffix[1:]}").exists()


class StraceRecords:
    """Converts strace's calls, in order of time, to records. Name records are collected in `names`."""

    def __init__(self, to_monotonic_ns: int, recorded: Collection[str]) -> None:
        self._to_monotonic_ns = to_monotonic_ns
        self._recorded = frozenset(recorded)
        self.names: list[bytes] = []
        self._replay = Replay()
        self._identities: dict[bytes, tuple[int, int, int, int]] = {}

    def apply(self, call: text.Call) -> Iterator[tuple[int, ...]]:
        """Add the name records of `call` to `names`. Yield the event record of `call` if it is one of the calls to record."""
        pid = self._replay.process_of(call)
        time_ns = call.start_ns + self._to_monotonic_ns
        if call.name in FORKS:
            if child := self._replay.fork(call):
                self._name(records.NAME_FORK, time_ns, child, child, b"", parent=pid, result=child)
        elif call.name == "execve" and call.result == 0:
            self._name(records.NAME_EXEC, time_ns, pid, call.tid, b"\0".join(command_line(call)), result=pid)
        elif call.name == "exit" and call.tid == pid:
            self._name(records.NAME_EXIT, time_ns, pid, call.tid, b"", result=call.result)
        else:
            self._replay.move(call)
        if call.name in self._recorded:
            event = self._event(call, pid, time_ns)
            if event is not None:
                yield event

    def _event(self, call: text.Call, pid: int, time_ns: int) -> tuple[int, ...] | None:
        number, kind = CALLS[call.name]
        fd, path, requested, flag_bits, use = -1, None, 0, 0, None
        if kind in OPEN_KINDS:
            fd, path, requested = self._open(call, kind, pid, time_ns)
            flag_bits = _open_flag_bits(requested)
        elif kind is Kind.MAP:
            if (use := mapped(call)) is None:
                return None
        elif kind in (Kind.NAME, Kind.NAME_AT, Kind.RENAME, Kind.RENAME_AT):
            self._given(call, kind, pid, time_ns)
        elif kind is not Kind.WAIT:
            flag_bits = _open_flag_bits(self._replay.flags_of(call))
            use = self._replay.use(call, kind)
        if use is not None:
            fd, path, requested = use.fd, use.path, use.requested or 0
        offset = -1 if use is None or use.offset is None else use.offset
        inode, device, generation, file_type = self._identify(path)
        if file_type and file_type != records.TYPE_REGULAR and kind is not Kind.MAP:
            offset = -1
        packed = records.pack_call(number, file_type | flag_bits)
        head = 0, 0, time_ns, call.duration_ns, call.result, offset, requested, inode
        return (*head, pid, call.tid, device, generation, fd, packed)

    def _open(self, call: text.Call, kind: Kind, pid: int, time_ns: int) -> tuple[int, bytes | None, int]:
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC if kind is Kind.CREATE else text.flags(call.arguments, b"O_")
        if call.result < 0:
            self._given(call, kind, pid, time_ns)
            return -1, None, flags
        self._replay.open(call)
        path = call.result_path or b""
        inode, device, generation, file_type = self._identify(path)
        size = _size(path) if file_type == records.TYPE_REGULAR and not flags & os.O_TRUNC else 0
        identity = {"inode": inode, "device": device, "generation": generation, "size": size, "mode": file_type << 12}
        self._name(records.NAME_OPENED, time_ns, pid, call.tid, path, **identity)
        return call.result, path, flags

    def _given(self, call: text.Call, kind: Kind, pid: int, time_ns: int) -> None:
        names = text.strings(call.arguments)
        directories = re.findall(rb"(?:AT_FDCWD|\d+)<([^>]*)>", call.arguments) if kind in _RELATIVE else []
        for i, name in enumerate(names[: 2 if kind in (Kind.RENAME, Kind.RENAME_AT) else 1]):
            base = text.unescape(directories[min(i, len(directories) - 1)]) if directories else os.fsencode(Path.cwd())
            path = name if name.startswith(b"/") else base.rstrip(b"/") + b"/" + name
            self._name(records.NAME_GIVEN, time_ns, pid, call.tid, path, result=max(call.result, -(2**31)))

    def _identify(self, path: bytes | None) -> tuple[int, int, int, int]:
        """Return (inode, device, generation, file type) of the file `path`. If it is missing, a hash of `path` is the inode."""
        if path is None:
            return 0, 0, 0, 0
        if path not in self._identities:
            self._identities[path] = _look_up(path)
        return self._identities[path]

    def _name(self, type_: int, time_ns: int, pid: int, tid: int, content: bytes, **fields: int) -> None:
        self.names.append(records.pack_name(records.NameRecord(time_ns, type_, pid, tid, text=content, **fields)))


_RELATIVE = (Kind.OPEN_AT, Kind.OPEN_AT2, Kind.NAME_AT, Kind.RENAME_AT)
_ANONYMOUS = {b"pipe:": records.TYPE_PIPE, b"socket:": records.TYPE_SOCKET, b"anon_inode:": 0}


def _look_up(path: bytes) -> tuple[int, int, int, int]:
    for prefix, file_type in _ANONYMOUS.items():
        if path.startswith(prefix):
            digits = re.search(rb"\d+", path)
            return int(digits[0]) if digits else zlib.crc32(path), _device_of(file_type), 0, file_type
    try:
        status = Path(os.fsdecode(path)).stat()
    except (OSError, ValueError):
        return zlib.crc32(path), 0, 1, records.TYPE_REGULAR
    device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
    return status.st_ino, device, 0, stat.S_IFMT(status.st_mode) >> 12


@functools.cache
def _device_of(file_type: int) -> int:
    """Return the device number of a file without a path: for a pipe, the device of all pipes; else 1, as it does not matter."""
    if file_type != records.TYPE_PIPE:
        return 1
    ends = os.pipe()
    device = os.fstat(ends[0]).st_dev
    for end in ends:
        os.close(end)
    return os.major(device) << 20 | os.minor(device)


def _size(path: bytes) -> int:
    try:
        return Path(os.fsdecode(path)).stat().st_size
    except (OSError, ValueError):
        return 0


def _open_flag_bits(flags: int) -> int:
    return (
        (records.RAW_FLAG_DIRECT if flags & os.O_DIRECT else 0)
        | (records.RAW_FLAG_APPEND if flags & os.O_APPEND else 0)
        | (records.RAW_FLAG_WRITABLE if flags & os.O_ACCMODE else 0)
    )
