"""Trace the jobs of a YAML file at the same time, each by a separate tracer into a separate trace."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from iotwin.command_lines import own_command
from iotwin.common.errors import UsageError, nearest
from iotwin.common.files import make_folder
from iotwin.common.processes import children
from iotwin.common.signals import interrupts_held
from iotwin.common.untrusted_files import decode_foreign
from iotwin.tracing_tools.recorder.end_conditions import END_SIGNAL
from iotwin.workload_yaml.yaml12 import parse, read_text

_OPTIONS = ("image", "container", "pid", "cgroup", "attach", "volume", "gpus", "container_option", "workload")
_KEYS = ("command", "environment", *_OPTIONS)


def read_jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of the YAML file by name. Raises UsageError if the file is not as docs/trace.md describes."""
    jobs = parse(read_text(path), str(path))
    if not isinstance(jobs, dict) or not jobs or not all(isinstance(job, dict) for job in jobs.values()):
        raise UsageError(f"{path} is not a mapping of job names to jobs, such as: first: {{command: [python, train.py]}}")
    for name, job in jobs.items():
        if not isinstance(name, str) or "/" in name or "\0" in name or name.startswith("."):
            raise UsageError(f"{path}: '{name}' cannot be the name of a job, as it names its trace")
        _check_words(path, name, job)
        for key in job:
            if key not in _KEYS:
                raise UsageError(f"{path}: job {name} has an unknown key '{key}'{nearest(str(key), list(_KEYS))}")
        if not isinstance(job.get("command", []), list) or not isinstance(job.get("environment", {}), dict):
            raise UsageError(f"{path}: in job {name}, command is a list of words and environment a mapping")
    return jobs


def _check_words(path: Path, name: str, job: dict[str, Any]) -> None:
    """Raise UsageError if a word or an environment variable of a job cannot be passed to a process."""
    environment = job.get("environment") if isinstance(job.get("environment"), dict) else {}
    for key, value in (environment or {}).items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key or "\0" in str(value):
            raise UsageError(f"{path}: job {name} has an environment variable {key!r}, which none can be called; rename it")
    for key in (*_OPTIONS, "command"):
        values = job.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            if "\0" in str(value):
                raise UsageError(f"{path}: job {name} has a NUL in {key}, which no program can be given; leave it out")


def trace_jobs(
    jobs: dict[str, dict[str, Any]], directory: Path, common: Sequence[str], passes_end_signal: bool = False
) -> dict[str, dict[str, Any]]:
    """Trace the jobs at the same time into DIRECTORY/NAME.trace, and return the document that each tracer prints, by job name.

    `common`: options of every tracer. An interrupt is passed on to every tracer, which ends its job and finishes its trace. So is
    END_SIGNAL if `passes_end_signal`. If a tracer fails, it prints the reason, and its document has only `exit_status`.
    """
    make_folder(directory)
    tracers: dict[str, subprocess.Popen[bytes]] = {}

    def pass_on(number: int, frame: FrameType | None) -> None:
        for tracer in tracers.values():
            tracer.send_signal(number)

    if passes_end_signal:
        signal.signal(END_SIGNAL, pass_on)
    try:
        _start(tracers, jobs, directory, common)
    except BaseException:
        for tracer in tracers.values():  # no tracer may outlive this process
            tracer.send_signal(signal.SIGINT)
        for tracer in tracers.values():
            tracer.communicate()
        raise
    return _documents(tracers)


def _start(
    tracers: dict[str, subprocess.Popen[bytes]], jobs: dict[str, dict[str, Any]], directory: Path, common: Sequence[str]
) -> None:
    for name, job in jobs.items():
        environment = os.environ | {key: str(value) for key, value in job.get("environment", {}).items()}
        command = own_command("trace", "-o", directory / f"{name}.trace", "--json", *common)
        with interrupts_held(children.REQUESTS):  # an interrupt before the assignment would leave the tracer running
            tracers[name] = subprocess.Popen(
                [*command, *_words(job)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # so that Ctrl-C reaches the tracer once, from this process
                preexec_fn=children.ready,
            )


def _documents(tracers: dict[str, subprocess.Popen[bytes]]) -> dict[str, dict[str, Any]]:
    """Wait for the tracers and return the document that each prints."""
    waiting = dict(tracers)
    documents: dict[str, dict[str, Any]] = {}
    while waiting:
        try:
            for name in list(waiting):
                output = waiting[name].communicate()[0]
                status = waiting.pop(name).returncode
                source = f"the output of the tracer of {name}"
                documents[name] = decode_foreign(output, dict[str, Any], source) if output else {"exit_status": status}
        except KeyboardInterrupt:
            for tracer in waiting.values():
                tracer.send_signal(signal.SIGINT)
    return documents


def _words(job: dict[str, Any]) -> list[str]:
    words = []
    for key in _OPTIONS:
        values = job.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            words += [f"--{key.replace('_', '-')}", str(value)]
    command = [str(word) for word in job.get("command", [])]
    return [*words, "--", *command] if command else words
