"""Tracing one target - a command, a container, what runs already - into one trace."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tracing_tools.backends import choose_backend
from tracing_tools.backends.base import Backend
from tracing_tools.host import host, version
from tracing_tools.job_output import Tail, output_tails, reading_tails
from tracing_tools.live import LiveRecording, LiveView
from tracing_tools.samplers.gpu import GpuSampler
from tracing_tools.samplers.machine import MachineSampler
from tracing_tools.signals import interrupts_held
from tracing_tools.targets.base import TraceTarget
from tracing_tools.targets.cgroup import Cgroup, remove_stale_cgroups
from tracing_tools.targets.command import CommandTarget, User, invoking_user
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.finish import finish_trace
from tracing_tools.trace.manifest import Manifest, write_manifest
from tracing_tools.trace.progress import note
from tracing_tools.trace.recording import RAW, Recording, refuse_unusable
from tracing_tools.trace.syscalls import DEFAULT_DETAIL

# A lane holds some 30 ms, and the ring buffer behind it 100 ms more, of the fastest stream that a CPU was seen to produce. To
# look more often changed nothing that could be measured.
_POLL_BUSY_S, _POLL_IDLE_S = 0.01, 0.04
_BUSY_EVENTS = 1000  # in one drain
_CLOCK_EVERY_NS = 10_000_000_000
_LEDGER_EVERY_NS = 500_000_000  # also how much a killed recorder may leave uncounted
_CONTAINERS_EVERY_NS = 100_000_000  # a container lives longer than this
_NO_MEMORY = "the machine refused memory"
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
    duration_ns: int | None = None  # trace no longer than this; the target goes on
    live: bool = False  # show what the job does while it runs, instead of its output


def trace_command(command: list[str], directory: Path, options: Options) -> Manifest:
    """Run `command` under a tracer, leave its trace at `directory` and return the manifest (exit_status is the command's)."""
    return trace_target(lambda: CommandTarget(command), directory, options)


def trace_target(make_target: Callable[[], TraceTarget], directory: Path, options: Options) -> Manifest:
    """Trace the target until it ends, leave its trace at `directory` and return the manifest."""
    refuse_unusable(directory, options.force)
    remove_stale_cgroups()
    user = invoking_user()
    target = make_target()
    try:
        backend, notes = choose_backend(options.backend, replace(target.scope, detail=options.detail))
        manifest = Manifest(
            status="recording", backend=backend.name, probes=backend.probes, notes=notes + target.notes, host=host(directory),
            target=target.describe(), workload=options.workload, tool_version=version(),
        )  # fmt: skip
        held, forwarded = _record(target, backend, directory, manifest, options)
        note(f"finishing {directory}")
        try:
            _finish(held, directory, manifest, user)
            _wait_for(target, forwarded)
        finally:
            held.close()
        manifest.exit_status = target.exit_status
        return manifest
    finally:
        target.close()


class _HeldDirectory:
    """A directory by its descriptor: it stays the same one, whatever a job makes of its name meanwhile."""

    def __init__(self, directory: Path) -> None:
        self._descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        self.path = Path(f"/proc/self/fd/{self._descriptor}")

    def close(self) -> None:
        os.close(self._descriptor)


def _record(
    target: TraceTarget, backend: Backend, directory: Path, manifest: Manifest, options: Options
) -> tuple[_HeldDirectory, list[Tail]]:
    """Record until the target's end or the duration's; return the trace's directory, not yet finished, and what copies output."""
    view = LiveView(directory.name) if options.live else None
    recorder = LiveRecording(directory, manifest, options.force, view) if view else Recording(directory, manifest, options.force)
    with recorder as recording:
        held = _HeldDirectory(directory)
        recording.directory = held.path
        session = _Session(recording, backend, target, options, view)
        try:
            target.start(backend, held.path / "logs", directory.absolute() / RAW)
            session.run()
        except BaseException:
            backend.stop(None)
            if not session.released:
                recording.close()
                recording.directory = directory
                recording.discard()  # the job never ran
                held.close()
            raise
    return held, session.tails


def _wait_for(target: TraceTarget, forwarded: list[Tail]) -> None:
    """Wait for what we started, should only the duration of its trace be over; its exit status and its output are ours."""
    while target.is_ours and not target.has_ended():
        time.sleep(_POLL_IDLE_S)
        for tail in forwarded:
            tail.forward()
    for tail in forwarded:
        tail.forward()


def _finish(held: _HeldDirectory, directory: Path, manifest: Manifest, user: User | None) -> None:
    try:
        write_manifest(held.path, manifest)  # so that a recovery, should one be needed, knows how the job ended
        finish_trace(held.path, manifest)
    except (MemoryError, OSError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else _NO_MEMORY
        message = f"{directory} cannot be finished: {reason}; free some, then finish it with: iotwin recover {directory}"
        raise IotwinError(message) from error
    if user is not None:
        # What lies deepest first: a directory that is the user's already could be filled with links meanwhile.
        for path in (*reversed(list(held.path.rglob("*"))), held.path / "."):
            os.chown(path, user.user_id, user.group_id, follow_symlinks=False)


class _Session:
    """The loop that moves records from the kernel to the recording while the target runs."""

    def __init__(
        self, recording: Recording, backend: Backend, target: TraceTarget, options: Options, view: LiveView | None
    ) -> None:
        self._recording, self._backend, self._target, self._options, self._view = recording, backend, target, options, view
        self._samplers: list[MachineSampler | GpuSampler] = [MachineSampler(target.cpu_ns)]
        try:
            self._samplers.append(GpuSampler())
        except IotwinError as error:
            recording.manifest.notes.append(f"no GPU samples: {error}")
        path = target.cgroup_path()
        self._cgroup = Cgroup(path) if path else None
        self._containers: dict[int, str] = {}
        self._sample_due = self._clock_due = self._ledger_due = self._containers_due = 0
        self._pause_s = _POLL_BUSY_S
        self._interrupted = self._waiting = self._out_of_time = False
        self._failure: IotwinError | None = None
        self._lost: dict[str, int] = {}
        logs = recording.directory / "logs"
        self.tails = output_tails(logs) if options.forward_output and view is None else []
        if view is not None:
            self.tails = reading_tails(logs, view.phase_log)
        self.released = False

    def run(self) -> None:
        """Start the capture, let the target run, drain until all its processes have ended, stop the capture."""
        manifest, target = self._recording.manifest, self._target
        cpu_before, job_cpu_before = time.process_time_ns(), target.cpu_ns() or 0
        try:
            self._backend.start()
            self._recording.append_clock()
            target.attach(self._backend)
            self._recording.append_names(target.names())
            self._append_containers()
        except BaseException:
            target.abandon()
            raise
        try:
            self._follow_to_the_end()
        finally:
            manifest.end_ns = time.monotonic_ns()
            self._stop_backend()
        manifest.cost.wall_ns = manifest.end_ns - manifest.start_ns
        job_cpu = target.cpu_ns()
        manifest.cost.job_cpu_ns = None if job_cpu is None else job_cpu - job_cpu_before
        manifest.cost.tracer_cpu_ns = time.process_time_ns() - cpu_before
        manifest.exit_status = target.exit_status
        manifest.notes += target.closing_notes()
        if self._failure is not None:
            raise self._failure

    def _follow_to_the_end(self) -> None:
        while True:
            try:
                if not self.released:
                    self._release()
                while not self._is_over():
                    self._turn()
                return
            except KeyboardInterrupt:
                if not self._target.is_ours:
                    self._recording.manifest.notes.append("the trace was ended by an interrupt; what it traced goes on")
                    return
                if self._target.has_ended():
                    note("leaving the remaining processes untraced")
                    return
                self._interrupt()

    def _release(self) -> None:
        """Let the target run, and say in the manifest what it is: whoever interrupts it must find both done, or neither."""
        with interrupts_held():
            manifest = self._recording.manifest
            manifest.start_ns = time.monotonic_ns()
            self._target.release()
            self.released = True
            manifest.target = self._target.describe()
            write_manifest(self._recording.directory, manifest)

    def _is_over(self) -> bool:
        if self._out_of_time:
            return True
        duration_ns = self._options.duration_ns
        if duration_ns is not None and time.monotonic_ns() >= self._recording.manifest.start_ns + duration_ns:
            self._recording.manifest.notes.append("the trace ended after the duration asked for; what it traced goes on")
            self._out_of_time = True
            return True
        if not self._target.has_ended():
            return False
        if not self._target.is_ours or not self._target.remaining():
            return True
        if not self._waiting:
            self._waiting = True
            note("the command has ended; processes it left are still traced (Ctrl-C stops waiting for them)")
        return False

    def _turn(self) -> None:
        busy = self._drain()
        for tail in self.tails:
            tail.forward()
        if not busy and not self._is_over():
            time.sleep(self._pause_s)

    def _drain(self) -> bool:
        """Move what is pending; on a disk error stop recording, but let the job go on."""
        self._pause_s = _POLL_IDLE_S
        if self._failure is not None:
            return False
        try:
            before = self._recording.events_written
            with interrupts_held():  # between saving records and giving their place back to the kernel
                busy = self._backend.drain(self._recording)
            if self._recording.events_written - before > _BUSY_EVENTS:
                self._pause_s = _POLL_BUSY_S
            self._journal()
            return busy
        except (IotwinError, MemoryError) as error:
            reason = _NO_MEMORY if isinstance(error, MemoryError) else str(error)
            note(f"{reason}; the job goes on untraced")
            self._fail(reason)
            return False

    def _fail(self, reason: str) -> None:
        # Raised at the end: the traceback of what failed now would keep the ring buffer mapped.
        self._failure = IotwinError(reason)
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
        if self._view is not None:
            self._view.refresh(self._lost)
        if now >= self._containers_due:
            self._containers_due = now + _CONTAINERS_EVERY_NS
            self._append_containers()

    def _append_ledger(self) -> None:
        ledger = self._backend.ledger()
        self._lost = ledger.lost
        self._recording.append_journal("ledger", {"seen": ledger.seen, "lost": ledger.lost})

    def _append_containers(self) -> None:
        """Say which cgroups are containers', those that the job starts too."""
        found = self._cgroup.containers() if self._cgroup else {}
        for cgroup, identity in found.items():
            if cgroup not in self._containers:
                self._containers[cgroup] = identity
                name = self._target.containers.get(identity, identity[:12])
                self._recording.append_journal("container", {"cgroup": cgroup, "name": name})

    def _stop_backend(self) -> None:
        if self._view is not None:
            self._view.close()
        try:
            self._backend.stop(None if self._failure else self._recording)
        except IotwinError as error:
            self._fail(str(error))
            self._backend.stop(None)
        self._append_ledger()
        self._recording.append_clock()
        for tail in self.tails:
            tail.forward()

    def _interrupt(self) -> None:
        """Pass an interrupt on to the job, and end what does not end by itself in time."""
        if not self._interrupted:
            self._recording.manifest.notes.append("interrupted: the job was asked to end early")
        self._interrupted = True
        note("interrupted: asking the job to end")
        for number in (signal.SIGINT, signal.SIGKILL):
            self._target.signal(number)
            deadline = time.monotonic() + _GRACE_S
            while time.monotonic() < deadline and not self._is_over():
                self._turn()
            if self._target.has_ended():
                return
