"""Tracing one target - a command, a container, what runs already - into one trace."""

import os
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from common.errors import IotwinError, UnfinishedTraceError
from common.progress import note
from common.signals import interrupts_held
from tracing_tools.backends import choose_backend, convert
from tracing_tools.backends.preload import remove_stale_copies
from tracing_tools.protocols import Backend, TraceTarget
from tracing_tools.recorder.finishing import finish_as, give, held_path, hold
from tracing_tools.recorder.host import host, version
from tracing_tools.recorder.interruption import Interruption
from tracing_tools.recorder.live_display import LiveDisplay
from tracing_tools.samplers.gpu import GpuSampler
from tracing_tools.samplers.machine import MachineSampler
from tracing_tools.targets.cgroup import Cgroup, remove_stale_cgroups
from tracing_tools.targets.command import CommandTarget
from tracing_tools.targets.engine_gate import remove_stale_gates
from tracing_tools.targets.job_output import Tail, output_tails
from tracing_tools.targets.limits import LimitedCgroups
from tracing_tools.targets.user import User, invoking_user
from tracing_tools.trace.manifest import Manifest, write_manifest
from tracing_tools.trace.raw.file_table import readable
from tracing_tools.trace.raw.finish import finish_trace
from tracing_tools.trace.raw.recording import RAW, Recording, refuse_unusable
from tracing_tools.trace.syscalls import DEFAULT_DETAIL

# A lane holds some 30 ms, and the ring buffer behind it 100 ms more, of the fastest stream that a CPU was seen to produce. To
# look more often changed nothing that could be measured.
_POLL_BUSY_S, _POLL_IDLE_S = 0.01, 0.04
_BUSY_EVENTS = 1000  # in one drain
_CLOCK_EVERY_NS = 10_000_000_000
_LEDGER_EVERY_NS = 500_000_000  # also how much a killed recorder may leave uncounted
_SHORTEST_SAMPLE_NS = 50_000_000  # the kernel counts CPU time in ticks of up to 10 ms
_CONTAINERS_EVERY_NS = 100_000_000  # a container lives longer than this
_SHOWN_S = 1.0  # for the last of the job's output to be shown before a word of ours
_NO_MEMORY = "the machine refused memory"


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
    grace_ns: int | None = None  # what a job has to end after a first interrupt; None: as long as it needs
    live: bool = False  # show what the job does while it runs, instead of its output


def trace_command(command: list[str], directory: Path, options: Options, limits: LimitedCgroups | None = None) -> Manifest:
    """Run `command` under a tracer, leave its trace at `directory` and return the manifest (exit_status is the command's).

    The command alone is under `limits`, not the tracer.
    """
    return trace_target(lambda: CommandTarget(command, limits), directory, options)


def trace_target(make_target: Callable[[], TraceTarget], directory: Path, options: Options) -> Manifest:
    """Trace the target until it ends, leave its trace at `directory` and return the manifest.

    Once the target runs, nothing that befalls the trace ends or changes it: when it has ended, UnfinishedTraceError tells of that
    and has its exit status.
    """
    refuse_unusable(directory, options.force)
    remove_stale_cgroups()
    remove_stale_gates()
    remove_stale_copies()
    user = invoking_user()
    with LiveDisplay(directory.name, user) if options.live else nullcontext() as display:
        return _trace(make_target, directory, options, user, display)


def _trace(
    make_target: Callable[[], TraceTarget], directory: Path, options: Options, user: User | None, display: LiveDisplay | None
) -> Manifest:
    target = make_target()
    try:
        backend, notes = choose_backend(options.backend, replace(target.scope, detail=options.detail))
        manifest = Manifest(
            status="recording",
            backend=backend.name,
            probes=backend.probes,
            notes=notes + target.notes,
            host=host(directory),
            target=target.describe(),
            workload=_text(options.workload),
            tool_version=version(),
        )
        interruption = Interruption(target, options.grace_ns, manifest.notes)
        try:
            held, session = _record(target, backend, directory, manifest, options, interruption, display)
            try:
                manifest, failure = _finish(held, directory, manifest, user, session.failure)
                _wait_for(target, session.tails, interruption)
            finally:
                held.close()
        finally:
            interruption.end()
        manifest.exit_status = target.exit_status
        if failure is not None:
            raise UnfinishedTraceError(_unfinished(directory, failure, target.exit_status), target.exit_status) from failure
        return manifest
    finally:
        target.close()


def _text(words: str | None) -> str | None:
    return None if words is None else readable(os.fsencode(words))


def _unfinished(directory: Path, failure: Exception, status: int | None) -> str:
    """What went wrong with the trace of a job that ran, and what can be done."""
    ended = "" if status is None else f" (the command's own exit status is {status if status >= 0 else 128 - status})"
    return f"{_reason(failure)}; once that is mended, finish the trace with: iotwin recover {directory}{ended}"


def _cannot_finish(directory: Path, error: Exception) -> IotwinError:
    reason = error.strerror or str(error) if isinstance(error, OSError) else _reason(error)
    told = IotwinError(f"{directory} cannot be finished: {reason}")
    told.__cause__ = error
    return told


def _reason(failure: Exception) -> str:
    if isinstance(failure, MemoryError):
        return _NO_MEMORY
    if isinstance(failure, OSError):
        return f"the trace cannot be written: {failure.strerror or failure}"
    return str(failure) if isinstance(failure, IotwinError) else f"{type(failure).__name__}: {failure}"


class _HeldDirectory:
    """A directory by its descriptor: it stays the same one, whatever a job makes of its name meanwhile."""

    def __init__(self, directory: Path) -> None:
        self.descriptor = hold(directory)
        self.path = held_path(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)


def _record(
    target: TraceTarget, backend: Backend, directory: Path, manifest: Manifest, options: Options, interruption: Interruption,
    display: LiveDisplay | None,
) -> tuple[_HeldDirectory, "_Session"]:  # fmt: skip
    """Record until the target's end or the duration's; return the trace's directory, not yet finished, and how it went."""
    with Recording(directory, manifest, options.force) as recording:
        held = _HeldDirectory(directory)
        recording.directory = held.path
        session = _Session(recording, backend, target, options, display, interruption)
        try:
            target.start(backend, held.path / "logs", directory.absolute() / RAW)
            session.run()
        except BaseException as error:
            backend.stop(None)
            if not session.released:
                recording.close()
                recording.directory = directory
                recording.discard()  # the job never ran
                held.close()
                if isinstance(error, OSError) and error.filename:
                    error.filename = str(error.filename).replace(str(held.path), str(directory), 1)
            if not session.released or not isinstance(error, Exception):
                raise
            session.failure = session.failure or error
    return held, session


def _wait_for(target: TraceTarget, tails: list[Tail], interruption: Interruption) -> None:
    """Wait for what we started, should only its trace be over; its exit status and its output are ours."""
    while target.is_ours and not target.has_ended():
        time.sleep(_POLL_IDLE_S)
        for tail in tails:
            tail.forward()
        interruption.heed()
    while [tail for tail in tails if not tail.forward(_POLL_IDLE_S)] and not interruption.is_asked():
        pass
    while not target.has_shown_output(_POLL_IDLE_S) and not interruption.is_asked():
        pass


def _finish(
    held: _HeldDirectory, directory: Path, manifest: Manifest, user: User | None, failure: Exception | None
) -> tuple[Manifest, Exception | None]:
    """Turn the recording into tables, unless it failed; return the manifest and what was in the way, if anything was."""
    try:
        write_manifest(held.path, manifest)  # so that a recovery, should one be needed, knows how the job ended
        if user is not None:
            give(held.descriptor, user)
        if failure is not None:
            return manifest, failure
        note(f"finishing {directory}")
        if user is None:
            return finish_trace(held.path, manifest, convert), None
        return finish_as(user, held.descriptor, lambda: finish_trace(held.path, manifest, convert)), None
    except Exception as error:  # whatever it is, the job's exit status comes first
        return manifest, failure or _cannot_finish(directory, error)


def _faults_of_children() -> int:
    """Return the page faults, ru_minflt + ru_majflt, of the processes that this one waited for, and of theirs."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt + usage.ru_majflt


class _Session:
    """The loop that moves records from the kernel to the recording while the target runs."""

    def __init__(
        self, recording: Recording, backend: Backend, target: TraceTarget, options: Options, display: LiveDisplay | None,
        interruption: Interruption,
    ) -> None:  # fmt: skip
        self._interruption = interruption
        self._recording, self._backend, self._target, self._options, self._display = recording, backend, target, options, display
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
        self._waiting = self._out_of_time = False
        self.failure: Exception | None = None  # of the recording; the job goes on without
        self.tails: list[Tail] = []
        self.released = False

    def run(self) -> None:
        """Start the capture, let the target run, drain until all its processes have ended, stop the capture."""
        manifest, target = self._recording.manifest, self._target
        faults_before = _faults_of_children()
        cpu_before, job_cpu_before = time.process_time_ns(), target.cpu_ns() or 0
        try:
            self._backend.start()
            self._recording.append_clock()
            target.attach(self._backend)
            self._recording.append_names(target.names())
            self._append_containers()
            if self._display is not None:
                self._display.watch(self._recording.directory)
            elif self._options.forward_output and not target.show_output():
                self.tails = output_tails(self._recording.directory / "logs")
            self._release()
        except BaseException:
            target.abandon()
            raise
        while not self._is_over():
            self._turn()
            if self._interruption.heed():
                break
        self._guarded(self._sample_the_end)
        manifest.end_ns = time.monotonic_ns()
        manifest.notes += target.closing_notes()
        self._guarded(self._stop_backend)
        manifest.cost.wall_ns = manifest.end_ns - manifest.start_ns
        job_cpu = target.cpu_ns()
        manifest.cost.job_cpu_ns = None if job_cpu is None else job_cpu - job_cpu_before
        manifest.exit_status = target.exit_status
        if "mmap" in self._options.detail and isinstance(target, CommandTarget) and target.has_ended():
            faults = _faults_of_children() - faults_before
            manifest.notes.append(f"the kernel counted {faults} page faults of the job, those on memory without a file included")
        display_cpu_ns = self._display.end() if self._display is not None else 0  # not before the faults of children are counted
        manifest.cost.tracer_cpu_ns = time.process_time_ns() - cpu_before + display_cpu_ns
        if target.has_ended():
            target.has_shown_output(_SHOWN_S)

    def _release(self) -> None:
        """Let the target run, and say in the manifest what it is; from then on requests to end wait for their turn."""
        with interrupts_held():
            manifest = self._recording.manifest
            manifest.start_ns = time.monotonic_ns()
            self._target.release()
            self.released = True
            self._interruption.begin()
            manifest.target = self._target.describe()
            self._guarded(lambda: write_manifest(self._recording.directory, manifest))

    def _guarded(self, work: Callable[[], None]) -> None:
        """Do what belongs to the recording; whatever is in its way ends the recording, and never the job."""
        try:
            work()
        except Exception as error:
            self._fail(error)

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
        if self.failure is not None:
            return False
        try:
            before = self._recording.events_written
            with interrupts_held():  # between saving records and giving their place back to the kernel
                busy = self._backend.drain(self._recording)
            if self._recording.events_written - before > _BUSY_EVENTS:
                self._pause_s = _POLL_BUSY_S
            self._journal()
            return busy
        except Exception as error:
            self._fail(error)
            return False

    def _fail(self, error: Exception) -> None:
        """End the recording for what stands in its way; the first such error is told when the job has ended."""
        if self.failure is None:
            self.failure = error.with_traceback(None)  # which would keep the ring buffer mapped
            note(f"{_reason(error)}; the job goes on untraced")

    def _journal(self) -> None:
        now = time.monotonic_ns()
        if now >= self._sample_due:
            self._sample(now)
        if now >= self._clock_due:
            self._clock_due = now + _CLOCK_EVERY_NS
            self._recording.append_clock()
        if now >= self._ledger_due:
            self._ledger_due = now + _LEDGER_EVERY_NS
            self._append_ledger()
            if self._display is not None:
                self._display.watch(self._recording.directory)  # a container's logs begin with it
        if now >= self._containers_due:
            self._containers_due = now + _CONTAINERS_EVERY_NS
            self._append_containers()

    def _sample(self, now: int) -> None:
        self._sample_due = now + self._options.interval_ns
        for sampler in self._samplers:
            for kind, row in sampler.sample():
                self._recording.append_journal(kind, row)

    def _sample_the_end(self) -> None:
        """Sample what is left of the last interval, unless it is too short for the kernel's ticks to say anything of it."""
        now, interval_ns = time.monotonic_ns(), self._options.interval_ns
        if self.failure is None and now - (self._sample_due - interval_ns) >= max(interval_ns // 10, _SHORTEST_SAMPLE_NS):
            self._sample(now)

    def _append_ledger(self) -> None:
        ledger = self._backend.ledger()
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
        try:
            self._backend.stop(None if self.failure else self._recording)
        except Exception as error:
            self._fail(error)
            self._backend.stop(None)
        self._recording.release_reserve()  # not before the logs have the last of the output, which would take its room
        self._append_ledger()
        self._recording.append_clock()
        for tail in self.tails:
            tail.forward()
