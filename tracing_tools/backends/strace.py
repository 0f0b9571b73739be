"""The fallback without root or eBPF: strace, exact and slow. Also the oracle of the tests.

strace writes text while the job runs; when the job has ended, the text becomes the same records that the eBPF programs give.
Offsets follow each open file's position; device and inode are looked up from the path afterwards, as strace does not know them.
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

from common.errors import IotwinError
from common.foreign_files import open_foreign
from tracing_tools.backends.job_directory import make_for_job, make_job_directory
from tracing_tools.backends.unrecorded import not_recorded
from tracing_tools.protocols import Ledger, Scope
from tracing_tools.targets.processes import processes_called_with
from tracing_tools.trace import strace_text as text
from tracing_tools.trace.manifest import Manifest
from tracing_tools.trace.raw import records
from tracing_tools.trace.raw.converted import ConvertedRecords
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.strace_replay import FOLLOWED, FORKS, Replay, command_line, mapped
from tracing_tools.trace.syscalls import CALLS, OPEN_KINDS, Kind, calls_of

# What is no one line of strace's text.
_NOT_IN_TEXT = (Kind.SEND, Kind.COPY, Kind.MAPPED, Kind.AIO_SUBMIT, Kind.AIO_COLLECT)
_DIRECTORY, _FILE = "strace", "thread"  # in raw/: a text file for each thread, thread.TID
_CUT_OFF = (
    "strace ended before the command, as at the command's limit on file sizes (ulimit -f), within which it writes,"
    " or without an inode for another file: what came later is not in the trace"
)
_WATCH_S = 0.5
_LAST_LINE_BYTES = 1 << 9  # it has no arguments
_LOST = (
    "strace's text of {} threads is cut off, as by a full disk or a limit on file sizes: each lost one call at least,"
    " which is what is counted as lost"
)
_CALLS_FILE = "strace.calls"  # the names of the calls to record; strace tells of more, as it needs them to follow the job


def unavailable_reason() -> str | None:
    """Return why this machine cannot capture this way, or None when it can."""
    return None if shutil.which("strace") else "strace is not installed; install the package strace"


class StraceBackend:
    """Captures by ptrace. Every traced call stops the job twice: its times are the job's under strace."""

    name = "strace"

    def __init__(self, scope: Scope) -> None:
        """strace follows the command's process tree; IotwinError when the scope has no command of ours."""
        if not scope.starts_command:
            raise IotwinError("strace traces only a command that it starts itself; containers and running processes need eBPF")
        self.probes = ["ptrace"]
        self._has_cgroup = bool(scope.cgroup_id)
        self._output = b""
        self._text = Path()
        self._watch: threading.Thread | None = None
        self._is_stopped = threading.Event()
        self._notes = not_recorded("strace", scope, ("mmap", "async", "block"))
        self._calls = [name for name, (_, kind) in calls_of(scope.detail).items() if kind not in _NOT_IN_TEXT]

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` under strace, one text file per thread."""
        calls_asked_for = ",".join(self._calls)
        calls = ",".join(dict.fromkeys((*self._calls, *FOLLOWED)))
        (raw / _CALLS_FILE).write_text(calls_asked_for)
        self._text = make_job_directory(raw, _DIRECTORY) / _FILE
        if not self._has_cgroup:
            self._output = os.fsencode(self._text)
        return [
            # Beside the command, not above it (-D): should strace be ended, as by a limit on file sizes, the command goes on.
            "strace", "-D", "-ff", "-q", "-y", "-s", "64", "--absolute-timestamps=format:unix,precision:ns", "--syscall-times=ns",
            "-e", "signal=none", "-e", f"trace={calls}", "-o", str(self._text), "--", *command,
        ]  # fmt: skip

    def start(self) -> None:
        """Nothing to do: strace starts with the command."""

    def follow(self, pid: int) -> None:
        """Make the file of the command's first thread: strace that cannot would leave the command waiting for ever.

        OSError when there is no room for it.
        """
        make_for_job(self._text.with_name(f"{_FILE}.{pid}"))
        self._watch = threading.Thread(target=self._end_when_stuck, args=(pid,), daemon=True)
        self._watch.start()

    def _end_when_stuck(self, root_pid: int) -> None:
        """End strace once the file system has no inode left for the text of a new thread, until `stop`.

        It then waits for that thread, which it keeps from running, and the job with it for ever. Without strace the job goes on.
        """
        while not self._is_stopped.wait(_WATCH_S):
            with contextlib.suppress(OSError):  # it ended meanwhile
                room = os.statvfs(self._text.parent)
                straces = processes_called_with(os.fsencode(self._text)) if room.f_files and not room.f_ffree else []
                if root_pid not in straces:  # which it is until it executes the command
                    for pid in straces:
                        os.kill(pid, signal.SIGKILL)

    def strays(self) -> dict[int, bool]:
        """Return strace itself where no cgroup holds it: it ends after the last process of the job."""
        return dict.fromkeys(processes_called_with(self._output), True) if self._output else {}

    def drain(self, recording: Recording) -> bool:
        """Nothing to do until the end: strace writes its own files."""
        return False

    def ledger(self) -> Ledger:
        """strace loses nothing, and does not count apart from what it writes."""
        return Ledger()

    def stop(self, recording: Recording | None) -> None:
        """strace ends with the command; say what its text does not tell."""
        self._is_stopped.set()
        if self._watch is not None:
            self._watch.join()
        if recording is None:
            return
        recording.manifest.notes.append(
            "captured by strace: inode numbers were looked up after the run, calls took longer than untraced"
        )
        recording.manifest.notes += self._notes


def convert(raw: Path, manifest: Manifest) -> None:
    """Turn strace's text into records; IotwinError when nothing tells how its clock goes with the trace's."""
    if not (raw / _CALLS_FILE).exists():
        return
    if not manifest.clock:
        raise IotwinError("the recording holds no reading of the clocks, without which strace's times mean nothing")
    paths = _text_files(raw / _DIRECTORY)
    calls = sorted(_calls_in(paths), key=lambda call: (call.start_ns, call.name == "exit"))
    clock = manifest.clock[-1]
    replay = _Records(clock.monotonic_ns - clock.realtime_ns, (raw / _CALLS_FILE).read_text().split(","))
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


def _text_files(directory: Path) -> list[Path]:
    """Return strace's files. The job's user can write in there, so nothing but such files is read, and no link."""
    return [path for path in directory.glob(f"{_FILE}.*") if path.suffix[1:].isdecimal()]


def _calls_in(paths: list[Path]) -> Iterator[text.Call]:
    for path in paths:
        with open_foreign(path, follow=False) as file:
            yield from text.parse_lines(int(path.suffix[1:]), file)


def _is_cut_off(path: Path) -> bool:
    """Whether the text does not go on to the end of its thread, which has ended."""
    with open_foreign(path, follow=False) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LAST_LINE_BYTES))
        lines = file.readlines()
    return not (lines and text.is_last(lines[-1])) and not Path(f"/proc/{path.suffix[1:]}").exists()


class _Records:
    """Makes records of the calls in order of time."""

    def __init__(self, to_monotonic_ns: int, wanted: Collection[str]) -> None:
        self._to_monotonic_ns = to_monotonic_ns
        self._wanted = frozenset(wanted)
        self.names: list[bytes] = []
        self._replay = Replay()
        self._identities: dict[bytes, tuple[int, int, int, int]] = {}

    def apply(self, call: text.Call) -> Iterator[tuple[int, ...]]:
        """Yield the event record of a traced call, if it is one."""
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
        if call.name in self._wanted:
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
        """Return (inode, device, generation, file type) for a path; a file that is gone gets a number made from its path."""
        if path is None:
            return 0, 0, 0, 0
        if path not in self._identities:
            self._identities[path] = _look_up(path)
        return self._identities[path]

    def _name(self, type_: int, time_ns: int, pid: int, tid: int, content: bytes, **fields: int) -> None:
        values = dict.fromkeys(("parent", "result", "inode", "device", "generation", "mode", "size"), 0) | fields
        self.names.append(
            records.pack_name(records.NameRecord(time_ns=time_ns, type=type_, pid=pid, tid=tid, text=content, **values))
        )


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
    """The kernel's own device of all pipes; of other things without a path any."""
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
