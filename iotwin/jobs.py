"""Several jobs traced at once, each by a tracer of its own into a trace of its own, as a YAML file lists them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tracing_tools.trace.errors import IotwinError, UsageError, nearest

_OPTIONS = ("image", "container", "pid", "cgroup", "attach", "volume", "gpus", "container_option", "workload")
_KEYS = ("command", "environment", *_OPTIONS)


def read_jobs(path: Path) -> dict[str, dict[str, Any]]:
    """Return the jobs of the file by name; UsageError when it is not as docs/trace.md has it."""
    try:
        jobs = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(jobs, dict) or not jobs or not all(isinstance(job, dict) for job in jobs.values()):
        raise UsageError(f"{path} is not a mapping of job names to jobs, such as: first: {{command: [python, train.py]}}")
    for name, job in jobs.items():
        if not isinstance(name, str) or "/" in name or name.startswith("."):
            raise UsageError(f"{path}: '{name}' cannot be the name of a job, as it names its trace")
        for key in job:
            if key not in _KEYS:
                raise UsageError(f"{path}: job {name} has an unknown key '{key}'{nearest(str(key), list(_KEYS))}")
        if not isinstance(job.get("command", []), list) or not isinstance(job.get("environment", {}), dict):
            raise UsageError(f"{path}: in job {name}, command is a list of words and environment a mapping")
    return jobs


def trace_jobs(jobs: dict[str, dict[str, Any]], directory: Path, common: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Trace the jobs at once into DIRECTORY/NAME.trace, all with the options `common`; return each one's document.

    An interrupt is passed on to every tracer, which ends its job and finishes its trace. A job whose tracer fails has an
    `exit_status` and no more; its tracer said why.
    """
    directory.mkdir(parents=True, exist_ok=True)
    tracers = {}
    for name, job in jobs.items():
        environment = os.environ | {key: str(value) for key, value in job.get("environment", {}).items()}
        command = [sys.executable, "-m", "iotwin.main", "trace", "-o", str(directory / f"{name}.trace"), "--json", *common]
        # A session of its own: an interrupt from the terminal then reaches it once, through us.
        tracers[name] = subprocess.Popen(
            [*command, *_words(job)], env=environment, stdout=subprocess.PIPE, start_new_session=True, stdin=subprocess.DEVNULL
        )
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
