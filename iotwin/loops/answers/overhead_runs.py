"""Measures what tracing costs a command: the command runs alternately with and without the tracer."""

import os
import select
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder, scratch_folder
from iotwin.common.numbers.confidence import median
from iotwin.common.progress import note
from iotwin.common.units import format_duration
from iotwin.common.untrusted_files import read_foreign_end
from iotwin.loops.experiments.run_cells import machine
from iotwin.trace_store.manifest import Manifest
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.backends.choose_backend import choose_backend
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_target
from iotwin.tracing_tools.targets.command import CommandTarget

_POLL_S = 0.01
_END_S = 5.0  # how long an interrupted command may take to end


@dataclass(frozen=True)
class TimedRun:
    """One run of the command. `cpu_ns`: CPU time of all its processes, None if nothing counts it. `trace`: None if untraced."""

    wall_ns: int
    cpu_ns: int | None
    trace: Manifest | None = None
    events_bytes: int = 0


def measure_overhead(command: list[str], runs: int, options: TraceOptions) -> dict[str, Any]:
    """Run `command` `runs` times with and `runs` times without the tracer, and return the document of ``iotwin overhead``.

    A run without the tracer comes first and does not count: it fills the page cache. Every other pair of runs begins with the
    traced run, so a machine that slowly becomes faster or slower favours neither. Raises IotwinError if a run fails, or if no run
    could be traced.
    """
    choose_backend(options.backend, Scope(detail=options.detail))[0].stop(None)  # before a first run that may take hours
    order = [("warm-up", False)]
    for number in range(1, runs + 1):
        order += [(f"run {number} of {runs}", is_traced) for is_traced in ((False, True) if number % 2 else (True, False))]
    found: dict[bool, list[TimedRun]] = {False: [], True: []}
    with scratch_folder() as folder:
        for index, (title, is_traced) in enumerate(order):
            title += ", traced" if is_traced else ", untraced"
            directory = folder / f"run-{index}"
            run = _traced(command, directory, options, title) if is_traced else _untraced(command, directory, title)
            note(f"{title}: {format_duration(run.wall_ns)}")
            found[is_traced].append(run)
    return overhead_document(found[False][1:], found[True])


def overhead_document(plain: list[TimedRun], traced: list[TimedRun]) -> dict[str, Any]:
    """Return the document of ``iotwin overhead`` for pairs of runs. All figures of several runs are medians, `lost` is a sum."""
    traces = [run.trace for run in traced if run.trace is not None]
    events = int(np.median([trace.events for trace in traces]))
    pairs = [*zip(traced, plain, strict=True)]
    added_ns = [under.wall_ns - alone.wall_ns for under, alone in pairs]
    cpu = [under.cpu_ns / alone.cpu_ns for under, alone in pairs if under.cpu_ns and alone.cpu_ns]
    return {
        "runs": len(plain),
        "wall_ratio": _interval([under.wall_ns / alone.wall_ns for under, alone in pairs]),
        "added_ns_per_event": _interval([ns / trace.events for ns, trace in zip(added_ns, traces, strict=True) if trace.events]),
        "bytes_per_event": float(np.median([run.events_bytes for run in traced])) / events if events else None,
        "events": events,
        "lost": sum(trace.lost_events for trace in traces),
        "tracer_cpu_s": float(np.median([trace.cost.tracer_cpu_ns for trace in traces])) / 1e9,
        "job_cpu_ratio": float(np.median(cpu)) if len(cpu) == len(pairs) else None,
        "machine": machine() | {"backend": traces[-1].backend},
    }


def _interval(values: list[float]) -> dict[str, float | None]:
    if not values:
        return dict.fromkeys(("median", "low", "high"))
    found = median(np.array(values))
    return {"median": found.value, "low": found.low, "high": found.high}


class _TimedCommand(CommandTarget):
    """A command that is timed from its release to its end, equally with and without the tracer."""

    wall_ns = 0

    def release(self) -> None:
        begin_ns = time.monotonic_ns()
        descriptor = os.pidfd_open(self.root_pid or 0)

        def wait() -> None:
            ended = select.poll()
            ended.register(descriptor, select.POLLIN)
            ended.poll()
            self.wall_ns = time.monotonic_ns() - begin_ns
            os.close(descriptor)

        self._waiter = threading.Thread(target=wait, daemon=True)
        self._waiter.start()
        super().release()

    def wait(self) -> None:
        """Wait until the command and all its processes have ended."""
        self._waiter.join()
        while not self.has_ended() or self.remaining():
            time.sleep(_POLL_S)


def _untraced(command: list[str], directory: Path, title: str) -> TimedRun:
    logs = directory / "logs"
    make_folder(logs)
    target = _TimedCommand(command)
    backend = Backend(target.scope)  # the base class captures nothing
    try:
        target.start(backend, logs, directory)
        target.attach(backend)
        cpu_before = target.cpu_ns()
        try:
            target.release()
            target.wait()
        except KeyboardInterrupt:
            _end(target)
            raise
        cpu = target.cpu_ns()
        target.closing_notes()  # waits for the last output
    finally:
        target.abandon()
        target.close()
    _refuse_failed(target.exit_status, logs, title)
    return TimedRun(target.wall_ns, None if cpu is None or cpu_before is None else cpu - cpu_before)


def _end(target: CommandTarget) -> None:
    """Ask the command to end, and kill it if it does not."""
    target.signal(signal.SIGINT)
    deadline = time.monotonic() + _END_S
    while not target.has_ended() or target.remaining():
        if time.monotonic() > deadline:
            target.signal(signal.SIGKILL)
        time.sleep(_POLL_S)


def _traced(command: list[str], directory: Path, options: TraceOptions, title: str) -> TimedRun:
    made: list[_TimedCommand] = []

    def make() -> _TimedCommand:
        made.append(_TimedCommand(command))
        return made[0]

    manifest = trace_target(make, directory, options)
    if any(text.startswith("interrupted") for text in manifest.notes):
        raise KeyboardInterrupt
    _refuse_failed(manifest.exit_status, directory / "logs", title)
    size = sum(part.stat().st_size for part in (directory / "events.parquet").iterdir())
    return TimedRun(made[0].wall_ns, manifest.cost.job_cpu_ns, manifest, size)


def _refuse_failed(status: int | None, logs: Path, title: str) -> None:
    if not status:
        return
    last = "".join(read_foreign_end(logs / "stderr").strip().splitlines()[-1:])
    how = f"was killed by signal {-status}" if status < 0 else f"ended with exit status {status}"
    raise IotwinError(f"{title}: the command {how}, so nothing is measured{': ' if last else ''}{last}")
