"""Record one target (a command, a container, running processes) as one trace."""

import os
import resource
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from iotwin.common.errors import IotwinError, UnfinishedTraceError
from iotwin.common.progress import note
from iotwin.common.signals import interrupts_held
from iotwin.trace_store.manifest import Manifest, write_manifest
from iotwin.trace_store.raw.file_table import readable
from iotwin.trace_store.raw.finish import NO_PHASES
from iotwin.trace_store.raw.record_files import RAW, Recording, refuse_unusable
from iotwin.trace_store.raw.ring import RingRecording
from iotwin.trace_store.syscalls import DEFAULT_DETAIL
from iotwin.tracing_tools.backend_base import Backend
from iotwin.tracing_tools.backends.choose_backend import choose_backend, records_at_once
from iotwin.tracing_tools.backends.preload import remove_stale_copies
from iotwin.tracing_tools.recorder.call_costs import costs_of_calls
from iotwin.tracing_tools.recorder.end_conditions import RecordingEnd, Until
from iotwin.tracing_tools.recorder.interruption import Interruption
from iotwin.tracing_tools.recorder.live_display import LiveDisplay, LiveOutputs
from iotwin.tracing_tools.recorder.machine_description import host, version
from iotwin.tracing_tools.recorder.openmetrics import open_metrics
from iotwin.tracing_tools.recorder.socket_addresses import SocketAddresses
from iotwin.tracing_tools.recorder.stall_watch import StallWatch
from iotwin.tracing_tools.recorder.unprivileged_finish import finish_recording, held_path, hold, reason_of_failure
from iotwin.tracing_tools.samplers.gpu import GpuSampler
from iotwin.tracing_tools.samplers.machine import MachineSampler
from iotwin.tracing_tools.targets.cgroup import Cgroup, remove_stale_cgroups
from iotwin.tracing_tools.targets.command import CommandTarget
from iotwin.tracing_tools.targets.docker_proxy import remove_stale_gates
from iotwin.tracing_tools.targets.job_output import Tail, output_tails
from iotwin.tracing_tools.targets.storage_limits import LimitedCgroups
from iotwin.tracing_tools.targets.target import TraceTarget
from iotwin.tracing_tools.targets.user import User, invoking_user

# Seconds between two drains. At the highest rate of events measured on one CPU, a lane is full after about 30 ms, and the ring
# buffer 100 ms later. Draining more often made no measurable difference.
_POLL_BUSY_S, _POLL_IDLE_S = 0.01, 0.04
_BUSY_EVENTS = 1000  # the job counts as busy if one drain moves more events than this
_CLOCK_EVERY_NS = 10_000_000_000
_LEDGER_EVERY_NS = 500_000_000  # if the recorder is killed, the losses since the last ledger are unknown
_SHORTEST_SAMPLE_NS = 50_000_000  # shorter samples would be inexact, as the kernel counts CPU time in ticks of up to 10 ms
_CONTAINERS_EVERY_NS = 100_000_000  # shorter than the life of a container, so that none is missed
_SHOWN_S = 1.0  # longest wait for the job's last output to be shown before iotwin's messages


@dataclass
class TraceOptions:
    """Options of a trace. `interval_ns`: time between samples. `detail`: groups of operations (syscalls.DETAIL_GROUPS)."""

    backend: str = "auto"
    interval_ns: int = 1_000_000_000
    workload: str | None = None
    force: bool = False
    forward_output: bool = True  # copy the job's output to iotwin's stdout and stderr
    detail: tuple[str, ...] = DEFAULT_DETAIL
    duration_ns: int | None = None  # end the trace after this time; the target continues
    grace_ns: int | None = None  # time that the job may take to end after the first interrupt; None: any time
    live: bool = False  # show the live view instead of the job's output
    ignore_phases: bool = False  # leave out the phases in the job's log
    ring_bytes: int | None = None  # keep only the newest records, at most this many bytes; None: keep all
    metrics: str | None = None  # publish metrics on this port, HOST:PORT or in this file
    until: Until | None = None  # end the trace when this happens; the target continues
    is_scratch: bool = False  # the caller removes the trace, so no line announces that it is finished


def trace_command(command: list[str], directory: Path, options: TraceOptions, limits: LimitedCgroups | None = None) -> Manifest:
    """Run and trace `command`, and write the trace to `directory`. Return its manifest; the exit_status is the command's.

    `limits` apply to the command, not to the tracer.
    """
    return trace_target(lambda: CommandTarget(command, limits), directory, options)


def trace_target(make_target: Callable[[], TraceTarget], directory: Path, options: TraceOptions) -> Manifest:
    """Trace the target that `make_target` returns until it ends, write the trace to `directory` and return its manifest.

    Once the target runs, no failure of the trace affects it. If the trace fails, UnfinishedTraceError is raised after the target
    has ended, with the target's exit status.
    """
    refuse_unusable(directory, options.force)
    remove_stale_cgroups()
    remove_stale_gates()
    remove_stale_copies()
    user = invoking_user()
    with _display(directory.name, user, options) as display:
        return _trace(make_target, directory, options, user, display)


def _display(title: str, user: User | None, options: TraceOptions) -> "LiveDisplay | nullcontext[None]":
    until = options.until
    stall = StallWatch(until.share, until.window_ns) if until is not None and until.kind == "stall" else None
    metrics = None if options.metrics is None else open_metrics(options.metrics)
    if not (options.live or metrics or stall):
        return nullcontext()
    return LiveDisplay(title, user, LiveOutputs(options.live, metrics, stall))


def _trace(
    make_target: Callable[[], TraceTarget], directory: Path, options: TraceOptions, user: User | None, display: LiveDisplay | None
) -> Manifest:
    target = make_target()
    try:
        backend, notes = choose_backend(options.backend, replace(target.scope, detail=options.detail))
        if (options.ring_bytes or options.metrics or (display and not options.live)) and not records_at_once(backend):
            what = "--ring, --metrics and --until with a stall require a recording of calls as they happen"
            raise IotwinError(f"{what}, which {backend.name} does not make; see `iotwin doctor` for libbpf and bcc")
        manifest = Manifest(
            status="recording",
            backend=backend.name,
            probes=backend.probes,
            notes=notes + target.notes,
            host=host(directory),
            target=target.describe(),
            workload=None if options.workload is None else readable(os.fsencode(options.workload)),
            tool_version=version(),
            parameters={"phases": NO_PHASES} if options.ignore_phases else {},
        )
        interruption = Interruption(target, options.grace_ns, manifest.notes)
        try:
            descriptor, session = _record(target, backend, directory, manifest, options, interruption, display)
            try:
                if session.failure is None and not options.is_scratch:
                    note(f"finishing {directory}")
                manifest, failure = finish_recording(descriptor, directory, manifest, user, session.failure)
                _wait_for(target, session.tails, interruption)
            finally:
                os.close(descriptor)
        finally:
            interruption.end()
        manifest.exit_status = target.exit_status
        if failure is not None:
            status = target.exit_status
            ended = "" if status is None else f" (the command's own exit status is {status if status >= 0 else 128 - status})"
            mended = f"; once that is mended, finish the trace with: iotwin recover {directory}"
            raise UnfinishedTraceError(f"{reason_of_failure(failure)}{mended}{ended}", status) from failure
        return manifest
    finally:
        target.close()


def _record(
    target: TraceTarget, backend: Backend, directory: Path, manifest: Manifest, options: TraceOptions, interruption: Interruption,
    display: LiveDisplay | None,
) -> tuple[int, "_Session"]:  # fmt: skip
    """Record until the target or the duration ends. Return (descriptor of the unfinished trace's directory, session).

    The descriptor remains valid if the job renames or replaces the directory.
    """
    with _recording(directory, manifest, options) as recording:
        descriptor = hold(directory)
        recording.directory = held = held_path(descriptor)
        session = _Session(recording, backend, target, options, display, interruption)
        try:
            target.start(backend, held / "logs", directory.absolute() / RAW)
            session.run()
        except BaseException as error:
            backend.stop(None)
            if not session.released:
                recording.close()
                recording.directory = directory
                recording.discard()
                os.close(descriptor)
                if isinstance(error, OSError) and error.filename:
                    error.filename = str(error.filename).replace(str(held), str(directory), 1)
            if not session.released or not isinstance(error, Exception):
                raise
            session.failure = session.failure or error
    return descriptor, session


def _recording(directory: Path, manifest: Manifest, options: TraceOptions) -> Recording:
    if options.ring_bytes is None:
        return Recording(directory, manifest, options.force)
    return RingRecording(directory, manifest, options.force, options.ring_bytes)


def _wait_for(target: TraceTarget, tails: list[Tail], interruption: Interruption) -> None:
    while target.is_ours and not target.has_ended():
        time.sleep(_POLL_IDLE_S)
        for tail in tails:
            tail.forward()
        interruption.heed()
    while [tail for tail in tails if not tail.forward(_POLL_IDLE_S)] and not interruption.is_asked():
        pass
    while not target.has_shown_output(_POLL_IDLE_S) and not interruption.is_asked():
        pass


def _faults_of_children() -> int:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_minflt + usage.ru_majflt


class _Session:
    """While the target runs, moves records from the backend to the recording, and samples the machine."""

    def __init__(
        self, recording: Recording, backend: Backend, target: TraceTarget, options: TraceOptions, display: LiveDisplay | None,
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
        self._sockets = SocketAddresses()
        self._sample_due = self._clock_due = self._ledger_due = self._containers_due = 0
        self._pause_s = _POLL_BUSY_S
        self._waiting = False
        self._ending = RecordingEnd(options.duration_ns, options.until, target, display.is_stalled if display else None)
        self.failure: Exception | None = None  # what ended the recording early; the job continues
        self.tails: list[Tail] = []
        self.released = False

    def run(self) -> None:
        """Start the capture, let the target run, move records until all its processes have ended, stop the capture."""
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
                self._display.watch(self._recording.directory, self._recording.folder)
            if self._options.forward_output and not self._options.live and not target.show_output():
                self.tails = output_tails(self._recording.directory / "logs")
            self._release()
        except BaseException:
            target.abandon()
            raise
        with self._ending:
            while not self._is_over():
                self._turn()
                if self._interruption.heed():
                    break
        manifest.notes += self._ending.missed()
        self._guarded(self._sample_the_end)
        manifest.end_ns = time.monotonic_ns()
        manifest.notes += target.closing_notes()
        job_cpu, faults = target.cpu_ns(), _faults_of_children() - faults_before
        self._guarded(self._stop_backend)
        manifest.cost.wall_ns = manifest.end_ns - manifest.start_ns
        manifest.cost.job_cpu_ns = None if job_cpu is None else job_cpu - job_cpu_before
        manifest.exit_status, manifest.target = target.exit_status, target.describe()
        if "mmap" in self._options.detail and type(target) is CommandTarget and target.has_ended():
            manifest.notes.append(f"the kernel counted {faults} page faults of the job, those on memory without a file included")
        display_cpu_ns = self._display.end() if self._display is not None else 0  # after `faults`, which must not include its own
        manifest.cost.tracer_cpu_ns = time.process_time_ns() - cpu_before + display_cpu_ns
        if target.has_ended():
            target.has_shown_output(_SHOWN_S)

    def _release(self) -> None:
        with interrupts_held():
            manifest = self._recording.manifest
            manifest.start_ns = time.monotonic_ns()
            self._target.release()
            self.released = True
            self._interruption.begin()
            manifest.target = self._target.describe()
            self._guarded(lambda: write_manifest(self._recording.directory, manifest))

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._fail(error)

    def _is_over(self) -> bool:
        if self._ending.is_reached(self._recording.manifest):
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
        """Move pending records to the recording. Return True if the next drain is due at once. An error never ends the job."""
        self._pause_s = _POLL_IDLE_S
        if self.failure is not None:
            return False
        try:
            before = self._recording.events_written
            with interrupts_held():  # an interrupt between the saving and the freeing of records would duplicate the records
                is_new = self._recording.make_room(self._target.running_names)
                busy = self._backend.drain(self._recording)
            if is_new and self._display is not None:
                self._display.watch(self._recording.directory, self._recording.folder)
            if self._recording.events_written - before > _BUSY_EVENTS:
                self._pause_s = _POLL_BUSY_S
            self._journal()
            self._note_joined()
            return busy
        except Exception as error:
            self._fail(error)
            return False

    def _note_joined(self) -> None:
        if names := self._target.take_joined():
            self._recording.append_names(names)
            self._recording.manifest.target = self._target.describe()
            write_manifest(self._recording.directory, self._recording.manifest)

    def _fail(self, error: Exception) -> None:
        """End the recording because of `error`. The first error is reported when the job has ended."""
        if self.failure is None:
            self.failure = error.with_traceback(None)  # a traceback refers to the mapped ring buffer
            note(f"{reason_of_failure(error)}; the job continues untraced")

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
                self._display.watch(
                    self._recording.directory, self._recording.folder
                )  # a container's logs exist only once it starts
        if now >= self._containers_due:
            self._containers_due = now + _CONTAINERS_EVERY_NS
            self._append_containers()

    def _sample(self, now: int) -> None:
        self._sample_due = now + self._options.interval_ns
        for sampler in self._samplers:
            for kind, row in sampler.sample():
                self._recording.append_journal(kind, row)
        if names := self._sockets.names(self._target.remaining()):
            self._recording.append_names(names)

    def _sample_the_end(self) -> None:
        """Sample the last, incomplete interval, unless it is too short for the kernel's ticks of CPU time."""
        now, interval_ns = time.monotonic_ns(), self._options.interval_ns
        if self.failure is None and now - (self._sample_due - interval_ns) >= max(interval_ns // 10, _SHORTEST_SAMPLE_NS):
            self._sample(now)

    def _work_unrecorded(self, work: Callable[[], None]) -> None:
        self._backend.work_unrecorded(self._recording, work)

    def _stop_recording(self) -> None:
        self._backend.stop(None if self.failure else self._recording)

    def _append_ledger(self) -> None:
        ledger = self._backend.ledger()
        self._recording.append_journal("ledger", {"seen": ledger.seen, "lost": ledger.lost})

    def _append_containers(self) -> None:
        found = self._cgroup.containers() if self._cgroup else {}
        for cgroup, identity in found.items():
            if cgroup not in self._containers:
                self._containers[cgroup] = identity
                name = self._target.containers.get(identity, identity[:12])
                self._recording.append_journal("container", {"cgroup": cgroup, "name": name})

    def _stop_backend(self) -> None:
        try:
            if self._target.is_ours and self._target.has_ended() and not self._target.remaining() and not self.failure:
                cost = self._recording.manifest.cost
                cost.transfer_ns, cost.call_ns = costs_of_calls(self._target.admit, self._work_unrecorded, self._stop_recording)
            else:
                self._stop_recording()
        except Exception as error:
            self._fail(error)
            self._backend.stop(None)
        self._recording.release_reserve()  # not before the job's end, since the job could fill the freed space
        self._append_ledger()
        self._recording.append_clock()
        for tail in self.tails:
            tail.forward()
