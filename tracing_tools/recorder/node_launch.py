"""Trace a command that srun, mpirun or torchrun started as one of several: one trace and one tracer for each machine."""

import os
import select
import time
from pathlib import Path
from typing import NoReturn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.progress import note
from iotwin.common.ranks import NodeTask
from iotwin.common.signals import interrupts_held
from iotwin.trace_store.manifest import MANIFEST_NAME, Manifest, read_manifest
from iotwin.trace_store.raw.record_files import RAW
from iotwin.tracing_tools.recorder.interruption import Interruption
from iotwin.tracing_tools.recorder.record_target import TraceOptions, trace_target
from iotwin.tracing_tools.targets.command import become_command, program_of
from iotwin.tracing_tools.targets.node_tasks import (
    ANSWER_S,
    JoiningTarget,
    NodeTarget,
    NodeTracer,
    TracerGoneError,
    listen,
    socket_name,
)
from iotwin.tracing_tools.targets.user import invoking_user

_WATCH_S = 0.2  # seconds between two checks for signals and of the output's keeper
_SHOW_S = 0.04


def trace_of(directory: Path, task: NodeTask) -> Path:
    """Return the path of this machine's trace in the set `directory`. Raises UsageError if `directory` is a trace itself."""
    if (directory / MANIFEST_NAME).exists():
        raise UsageError(f"{directory} holds a trace; under srun or mpirun, -o names a directory of traces, one for each node")
    if "/" in task.node or task.node.startswith("."):
        raise UsageError(f"the node's name {task.node!r} cannot name its trace; set another host name")
    return directory / f"{task.node}.trace"


def trace_task(command: list[str], task: NodeTask, directory: Path, options: TraceOptions) -> Manifest | int:
    """Trace the command of this task into the trace of its machine in the set `directory`.

    Returns the manifest if this process is the machine's tracer, else the exit status of the command, -N if signal N killed it.
    If the machine's trace is complete, or if its tracer has ended, a note reports that. The command then replaces this process,
    untraced.
    """
    program_of(command)
    trace = trace_of(directory, task)
    name = socket_name(task, trace)
    _make_set(directory)
    until_s = time.monotonic() + ANSWER_S
    while time.monotonic() < until_s:
        if listener := listen(name):
            with listener:
                if reason := _reason_against(trace, task):
                    listener.close()
                    _run_untraced(command, trace, reason)
                return trace_target(lambda: NodeTarget(command, task, listener), trace, options)
        if tracer := NodeTracer.find(name, task.rank):
            try:
                status = _join(command, task, tracer, trace, options)
            finally:
                tracer.close()
            if status is not None:
                return status
            until_s = time.monotonic() + ANSWER_S
    raise IotwinError(f"{trace}: the process that holds the name of the node's tracer does not answer; choose another -o")


def _make_set(directory: Path) -> None:
    """Create the directory of the set, if it is missing, for the user who called sudo."""
    user = None if directory.is_dir() else invoking_user()
    make_folder(directory)
    if user is not None:
        os.chown(directory, user.user_id, user.group_id, follow_symlinks=False)


def _reason_against(trace: Path, task: NodeTask) -> str | None:
    """Return why this task must not write `trace`: another tracer of the same launch began it. None if the task may write it."""
    try:
        found = read_manifest(trace)
    except IotwinError:
        return None
    if found.target.launch != task.launch:
        return None
    if found.status == "recording":
        return f"its tracer was killed, or is on another node of the same name; see: iotwin recover {trace}"
    return "all tasks that it knew of have ended before"


def _run_untraced(command: list[str], trace: Path, reason: str) -> NoReturn:
    note(f"{trace}: {reason}; this task runs untraced")
    become_command(command)


def _join(command: list[str], task: NodeTask, tracer: NodeTracer, trace: Path, options: TraceOptions) -> int | None:
    """Run the command while `tracer` records it, and return its exit status; None if the tracer failed before it recorded."""
    try:
        logs = tracer.begin(command[0])
    except TracerGoneError as error:
        tracer.close()
        _run_untraced(command, trace, str(error))
    if logs is None:
        return None
    target = JoiningTarget(command, task.rank)
    interruption = Interruption(target, options.grace_ns, [])
    try:
        target.start(tracer, logs, logs.parent / RAW)
        try:
            target.attach(tracer)
            if options.forward_output:
                target.show_output()
            with interrupts_held():
                target.release()
                interruption.begin()
        except BaseException:
            target.abandon()
            raise
        return _supervise(target, interruption, tracer, trace)
    finally:
        interruption.end()
        target.close()


def _supervise(target: JoiningTarget, interruption: Interruption, tracer: NodeTracer, trace: Path) -> int:
    """Wait for the command and its output, pass signals on to it, and return its exit status."""
    ended = select.poll()
    descriptor = os.pidfd_open(target.root_pid or 0)
    try:
        ended.register(descriptor, select.POLLIN)
        while not target.has_ended():
            ended.poll(1000 * _WATCH_S)
            interruption.heed()
    finally:
        os.close(descriptor)
    target.closing_notes()
    while not target.has_shown_output(_SHOW_S) and not interruption.is_asked():
        time.sleep(0)
    status = target.exit_status or 0
    if not tracer.end(status):
        note(
            f"{trace}: the tracer of this node ended before this task, whose last calls are missing; see: iotwin recover {trace}"
        )
    return status
