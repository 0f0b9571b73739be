"""What a command asks of the kernel, by strace: one list of calls for each of its processes."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest


def _strace_works() -> bool:
    if shutil.which("strace") is None:
        return False
    return subprocess.run(["strace", "-o", "/dev/null", "true"], capture_output=True, check=False).returncode == 0


needs_strace = pytest.mark.skipif(not _strace_works(), reason="needs strace, and leave to trace processes (ptrace)")

_CALL = re.compile(r"(\w+)\((.*)\)\s+= (-?\d+)")
_PATH = re.compile(r'<(/[^>]*)>|"(/[^"]*)"')
_SIZE = re.compile(r", (\d+)$")


class Call(NamedTuple):
    """One system call."""

    name: str
    paths: tuple[str, ...]  # it names or that its file descriptor stands for
    requested: int | None  # its last argument, when that is a number: the bytes asked for
    result: int | None  # None for openat: descriptors' numbers mean nothing


def strace(command: Sequence[str], calls: str, folder: Path) -> list[list[Call]]:
    """Run `command`, which must succeed, and return the `calls` (comma-separated) of each process, in order of its start."""
    prefix = folder / "strace"
    options = ["--seccomp-bpf", "-y", "-s", "0", "-e", f"trace={calls}", "-e", "signal=none"]
    command = ["strace", "-ff", *options, "-o", str(prefix), *command]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as running:
        message = running.communicate()[1]
    assert running.returncode == 0, message
    last = int(Path("/proc/sys/kernel/pid_max").read_text())  # after which the numbers of processes begin anew
    traces = sorted(folder.glob("strace.*"), key=lambda path: (int(path.suffix[1:]) - running.pid) % last)
    processes = [[call for line in path.read_text().splitlines() if (call := _parse(line)) is not None] for path in traces]
    for path in traces:
        path.unlink()
    return processes


def _parse(line: str) -> Call | None:
    match = _CALL.match(line)
    if match is None:
        return None
    name, arguments, result = match[1], match[2], int(match[3])
    paths = tuple(first or second for first, second in _PATH.findall(arguments))
    size = _SIZE.search(arguments)
    return Call(name, paths, int(size[1]) if size else None, None if name == "openat" else result)


def calls_of(calls: Sequence[Call], name: str) -> list[Call]:
    """Return the calls on the file `name`, under its final name or the temporary one before."""
    names = {name, name + ".partial"}
    return [call for call in calls if any(Path(path).name in names for path in call.paths)]
