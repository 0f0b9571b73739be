"""Tracing one command from before its first instruction to the end of its last descendant."""

import contextlib
import dataclasses
import functools
import os
import signal
import socket
import sys
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from tracing_tools.backends import choose_backend
from tracing_tools.backends.base import Backend, Scope
from tracing_tools.samplers.gpu import GpuSampler
from tracing_tools.samplers.machine import MachineSampler
from tracing_tools.targets.cgroup import JobCgroup, remove_stale_cgroups
from tracing_tools.targets.command import StartedCommand, User, invoking_user
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.finish import finish_trace
from tracing_tools.trace.manifest import Host, Manifest, Target, write_manifest
from tracing_tools.trace.progress import note
from tracing_tools.trace.recording import RAW, Recording, refuse_unusable
from tracing_tools.trace.records import NAME_INHERITED, NameRecord, pack_name
from tracing_tools.trace.syscalls import DEFAULT_DETAIL

# The ring buffer holds some 100 ms of the fastest stream that two CPUs were seen to produce.
_POLL_BUSY_S, _POLL_IDLE_S = 0.002, 0.04
_BUSY_EVENTS = 1000  # in one drain
_CLOCK_EVERY_NS = 10_000_000_000
_LEDGER_EVERY_NS = 500_000_000  # also how much a killed recorder may leave uncounted
_GRACE_S = 5.0  # between asking an interrupted job to end and ending it


@dataclass
class Options:
    """How to trace; `interval_ns` is between samples, `forward_output` copies the job's output to ours,
    `detail` names the groups of operations to record (syscalls.DETAIL_GROUPS).
    """

    backend: str = "auto"
    interval_ns: int = 1_000_000_000
    workload: str | None = None
    force: bool = False
    forward_output: bool = True
    detail: tuple[str, ...] = DEFAULT_DETAIL


def trace_command(command: list[str], directory: Path, options: Options) -> Manifest:
    """Run `command` under a tracer, leave its trace at `directory` and return the manifest (exit_status is the command's)."""
    refuse_unusable(directory, options.force)
    remove_stale_cgroups()
    user = invoking_user()
    cgroup = JobCgroup.create() if os.geteuid() == 0 else "it needs root"
    group = None if isinstance(cgroup, str) else cgroup
    try:
        scope = dataclasses.replace(group.scope if group else Scope(), detail=options.detail)
        backend, notes = choose_backend(options.backend, scope)
        if isinstance(cgroup, str):
            notes.append(f"filtering by process tree instead of a cgroup: {cgroup}")
        manifest = _trace(command, directory, options, _Parts(backend, notes, group, user))
    finally:
        if group is not None:
            group.remove()
    note(f"finishing {directory}")
    finished = finish_trace(directory, manifest)
    if user is not None:
        _give_to(directory, user.user_id, user.group_id)
    return finished


@dataclass
class _Parts:
    """What a trace is made with."""

    backend: Backend
    notes: list[str]
    group: JobCgroup | None
    user: User | None


def _trace(command: list[str], directory: Path, options: Options, parts: _Parts) -> Manifest:
    """Record the command and return the manifest, not yet finished."""
    backend, group, user = parts.backend, parts.group, parts.user
    target = Target(command, str(Path.cwd()), cgroup=str(group.path) if group else None, user_id=user.user_id if user else None)
    manifest = Manifest(
        status="recording", backend=backend.name, probes=backend.probes, notes=parts.notes, host=_host(directory), target=target,
        workload=options.workload, tool_version=_version(),
    )  # fmt: skip
    with Recording(directory, manifest, options.force) as recording:
        try:
            session = _Session(recording, backend, group, options)
            started = StartedCommand(backend.wrap(command, directory.absolute() / RAW), directory / "logs", user)
            session.run(started)
        except BaseException:
            backend.stop(None)
            if manifest.target.root_pid is None:
                recording.discard()  # the command never ran
            raise
    return manifest


class _Session:
    """The loop that moves records from the kernel to the recording while the command runs."""

    def __init__(self, recording: Recording, backend: Backend, cgroup: JobCgroup | None, options: Options) -> None:
        self._recording, self._backend, self._cgroup, self._options = recording, backend, cgroup, options
        self._samplers: list[MachineSampler | GpuSampler] = [MachineSampler(cgroup.cpu_ns if cgroup else lambda: None)]
        try:
            self._samplers.append(GpuSampler())
        except IotwinError as error:
            recording.manifest.notes.append(f"no GPU samples: {error}")
        self._sample_due = self._clock_due = self._ledger_due = 0
        self._pause_s = _POLL_BUSY_S
        self._interrupted = False
        self._status: int | None = None
        self._failure: IotwinError | None = None
        self._tails = [_Tail(recording.directory / "logs" / name, stream) for name, stream in _streams(options.forward_output)]

    def run(self, command: StartedCommand) -> None:
        """Start the capture, let the command run, drain until all its processes have ended, stop the capture."""
        manifest = self._recording.manifest
        cpu_before = time.process_time_ns()
        try:
            self._backend.start()
            self._recording.append_clock()
            if self._cgroup:
                self._cgroup.add(command.pid)
            self._backend.follow(command.pid)
            self._recording.append_names(_inherited_files(command.pid))
        except BaseException:
            command.abandon()
            raise
        try:
            manifest.start_ns = time.monotonic_ns()
            command.release()
            manifest.target.root_pid = command.pid
            write_manifest(self._recording.directory, manifest)
            self._follow_to_the_end(command)
        finally:
            manifest.end_ns = time.monotonic_ns()
            self._stop_backend()
        manifest.cost.wall_ns = manifest.end_ns - manifest.start_ns
        manifest.cost.job_cpu_ns = self._cgroup.cpu_ns() if self._cgroup else None
        manifest.cost.tracer_cpu_ns = time.process_time_ns() - cpu_before
        manifest.exit_status = self._status
        if self._failure is not None:
            raise self._failure

    def _follow_to_the_end(self, command: StartedCommand) -> None:
        while True:
            try:
                while self._status is None or self._has_stragglers():
                    self._turn(command)
                return
            except KeyboardInterrupt:
                if self._status is not None:
                    note("leaving the remaining processes untraced")
                    return
                self._interrupt(command)

    def _turn(self, command: StartedCommand) -> None:
        busy = self._drain()
        for tail in self._tails:
            tail.forward()
        if self._status is None:
            pid, status = os.waitpid(command.pid, os.WNOHANG)
            if pid:
                self._status = os.waitstatus_to_exitcode(status)
                if self._has_stragglers():
                    note("the command has ended; processes it left are still traced (Ctrl-C stops waiting for them)")
                return
        if not busy:
            time.sleep(self._pause_s)

    def _drain(self) -> bool:
        """Move what is pending; on a disk error stop recording, but let the job go on."""
        self._pause_s = _POLL_IDLE_S
        if self._failure is not None:
            return False
        try:
            before = self._recording.events_written
            busy = self._backend.drain(self._recording)
            if self._recording.events_written - before > _BUSY_EVENTS:
                self._pause_s = _POLL_BUSY_S
            self._journal()
            return busy
        except IotwinError as error:
            note(f"{error}; the job goes on untraced")
            self._fail(error)
            return False

    def _fail(self, error: IotwinError) -> None:
        # A new error: the old one's traceback would keep the ring buffer mapped.
        self._failure = IotwinError(str(error))
        self._recording.release_reserve()

    def _journal(self) -> None:
        now = time.monotonic_ns()
        if now >= self._sample_due:
            self._sample_due = now + self._options.interval_ns
            for sampler in self._samplers:
                for kind, row in sampler.sample():
                    self._recording.append_journal(kind, row)
        if now >= self._clock_due:
            self._clock_due = now + _CLOCK_EVERY_NS
            self._recording.append_clock()
        if now >= self._ledger_due:
            self._ledger_due = now + _LEDGER_EVERY_NS
            self._append_ledger()

    def _append_ledger(self) -> None:
        ledger = self._backend.ledger()
        self._recording.append_journal("ledger", {"seen": ledger.seen, "lost": ledger.lost})

    def _stop_backend(self) -> None:
        try:
            self._backend.stop(None if self._failure else self._recording)
        except IotwinError as error:
            self._fail(error)
            self._backend.stop(None)
        self._append_ledger()
        self._recording.append_clock()
        for tail in self._tails:
            tail.forward()

    def _has_stragglers(self) -> bool:
        return self._cgroup is not None and bool(self._cgroup.pids())

    def _interrupt(self, command: StartedCommand) -> None:
        """Pass an interrupt on to the job, and end what does not end by itself in time."""
        if not self._interrupted:
            self._recording.manifest.notes.append("interrupted: the job was asked to end early")
        self._interrupted = True
        note("interrupted: asking the job to end")
        for number in (signal.SIGINT, signal.SIGKILL):
            for pid in self._cgroup.pids() if self._cgroup else [command.pid]:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
            deadline = time.monotonic() + _GRACE_S
            while time.monotonic() < deadline and (self._status is None or self._has_stragglers()):
                self._turn(command)
            if self._status is not None:
                return


def _inherited_files(pid: int) -> bytes:
    """Name records of the files that the command finds open: its standard streams."""
    content = b""
    for descriptor in (0, 1, 2):
        link = Path(f"/proc/{pid}/fd/{descriptor}")
        try:
            status, path = link.stat(), os.fsencode(link.readlink())
        except OSError:
            continue  # closed
        device = os.major(status.st_dev) << 20 | os.minor(status.st_dev)
        identity = {"inode": status.st_ino, "device": device, "generation": 0, "mode": status.st_mode, "size": status.st_size}
        content += pack_name(NameRecord(0, NAME_INHERITED, pid, pid, parent=0, result=0, text=path, **identity))
    return content


class _Tail:
    """Copies what is appended to a log file to one of our own streams."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self._path, self._stream, self._position = path, stream, 0

    def forward(self) -> None:
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size > self._position:
            with self._path.open("rb") as log:
                log.seek(self._position)
                content = log.read(size - self._position)
            self._position += len(content)
            # Whoever read our output may have gone (head); the trace is not theirs to end, and the log has it all.
            with contextlib.suppress(BrokenPipeError):
                self._stream.write(content)
                self._stream.flush()


def _streams(forward: bool) -> list[tuple[str, IO[bytes]]]:
    return [("stdout", sys.stdout.buffer), ("stderr", sys.stderr.buffer)] if forward else []


@functools.cache
def _version() -> str:
    try:
        return metadata.version("iotwin")
    except metadata.PackageNotFoundError:
        return "unknown"


def _host(directory: Path) -> Host:
    system = os.uname()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(socket.gethostname(), system.release, os.cpu_count() or 1, memory, system.machine, _file_system_of(directory))


def _file_system_of(path: Path) -> str:
    """Return the type of the file system that `path` is or will be on."""
    best, kind = "", ""
    resolved = str(path.absolute())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def _give_to(directory: Path, user_id: int, group_id: int) -> None:
    for path in (directory, *directory.rglob("*")):
        os.chown(path, user_id, group_id, follow_symlinks=False)
