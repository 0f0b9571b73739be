"""Several jobs traced at once, each by a tracer of its own into a trace of its own, as a YAML file lists them."""

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import children
from common.errors import IotwinError, UsageError, nearest
from common.signals import interrupts_held
from datagen.dlio.yaml12 import parse, read_text
from iotwin.own_command import own_command

_OPTIONS = ("image", "container", "pid", "cgroup", "attach", "volume", "gpus", "container_option", "workload")
_KEYS = ("command", "environment", *_OPTIONS)


def read_jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of the file by name; UsageError when it is not as docs/trace.md has it."""
    try:
        jobs = parse(read_text(path), str(path))
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not YAML: {error}") from None
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
    """Raise UsageError where a word or a variable is one that no process can be given."""
    environment = job.get("environment") if isinstance(job.get("environment"), dict) else {}
    for key, value in (environment or {}).items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key or "\0" in str(value):
            raise UsageError(f"{path}: job {name} has an environment variable {key!r}, which none can be called; rename it")
    for key in (*_OPTIONS, "command"):
        values = job.get(key, [])
        for value in values if isinstance(values, list) else [values]:
            if "\0" in str(value):
                raise UsageError(f"{path}: job {name} has a NUL in {key}, which no program can be given; leave it out")


def trace_jobs(jobs: dict[str, dict[str, Any]], directory: Path, common: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Trace the jobs at once into DIRECTORY/NAME.trace, all with the options `common`; return each one's document.

    An interrupt is passed on to every tracer, which ends its job and finishes its trace. A job whose tracer fails has an
    `exit_status` and no more; its tracer said why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tracers: dict[str, subprocess.Popen[bytes]] = {}
    try:
        _start(tracers, jobs, directory, common)
    except BaseException:
        for tracer in tracers.values():  # none may run on alone
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
        with interrupts_held(children.REQUESTS):  # one that came between a tracer's start and its note would leave it running
            tracers[name] = subprocess.Popen(
                [*command, *_words(job)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                start_new_session=True,  # an interrupt from the terminal then reaches it once, through us
                preexec_fn=children.ready,
            )


def _documents(tracers: dict[str, subprocess.Popen[bytes]]) -> dict[str, dict[str, Any]]:
    """Wait for the tracers and return what each says."""
    waiting = dict(tracers)
    documents: dict[str, dict[str, Any]] = {}
    while waiting:
        try:
            for name in list(waiting):
                output = waiting[name].communicate()[0]
                status = waiting.pop(name).returncode
                documents[name] = json.loads(output) if output else {"exit_status": status}
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
