"""Command lines as processes of their own: started as from a terminal, interrupted, and what they leave."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from unittest import mock

from iotwin.common.progress import set_quiet
from iotwin.main import main
from tests.conftest import PATIENCE_S, ROOT, STARTED


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The only line on stderr."""
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "Traceback" not in lines[0]
    return lines[0]


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line in this process, which spares the imports; what a traced job prints is not part of the answer."""
    output, errors = io.StringIO(), io.StringIO()
    environment = mock.patch.dict(os.environ, {"PYTHONPATH": str(ROOT)})
    with redirect_stdout(output), redirect_stderr(errors), environment:
        try:
            status = main([str(argument) for argument in arguments])
        except SystemExit as end:  # argparse's way
            status = end.code
        finally:
            set_quiet(False)
    return subprocess.CompletedProcess(arguments, status, output.getvalue(), errors.getvalue())


def start(*arguments: str | Path, program: Sequence[str] = ("-m", "iotwin"), **options: object) -> subprocess.Popen[str]:
    """Start the command line in a session of its own, so that a Ctrl-C can reach it and its children and nobody else.

    `program` are the words by which Python finds it.
    """
    command = [sys.executable, *program, *map(str, arguments)]
    defaults: dict = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "start_new_session": True,
        "env": {**os.environ, "PYTHONPATH": str(ROOT)},
    }
    process = subprocess.Popen(command, **{**defaults, **options})
    STARTED.add(process.pid)
    return process


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until `condition()`; fail naming `what` after a time that no machine needs."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"never saw {what}"
        time.sleep(0.005)


def root_pid(trace: Path) -> int:
    """Return the pid of a traced command; the manifest has it a moment after the command has begun."""

    def known() -> int | None:
        pid: int | None = json.loads((trace / "manifest.json").read_text())["target"]["root_pid"]
        return pid

    wait_for(known, "the traced command's pid")
    return known() or 0


def press_ctrl_c(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """Send SIGINT to the whole foreground group, as a terminal does, and wait for its end and that of its children.

    Should the test have stopped it, it goes on with that.
    """
    for number in (signal.SIGINT, signal.SIGCONT):
        os.killpg(process.pid, number)
    output, errors = process.communicate(timeout=PATIENCE_S)
    # Python's own resource tracker ends a moment after the process that it serves.
    wait_for(lambda: not members(process.pid), f"the end of the processes {members(process.pid)}")
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


def members(session: int) -> list[int]:
    """Pids of the processes, zombies aside, that are still in the session."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(status.parent.name))
    return found


def processes_of(folder: Path) -> list[tuple[int, list[str]]]:
    """Return (pid, command) of the other processes that name `folder` in their command."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # ended meanwhile
            command = (process / "cmdline").read_bytes().decode(errors="replace")
            if str(folder) in command and int(process.name) != os.getpid():
                found.append((int(process.name), command.split("\0")))
    return found


def children(pid: int | str = "self") -> set[int]:
    """Pids of the children of a process that runs, whichever of its threads started them; none once it is gone."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # ended meanwhile
            found |= {int(child) for child in task.read_text().split()}
    return found


def name_of(pid: int) -> str:
    """The name of a process, empty once it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def left_behind() -> list[Path]:
    """Cgroups of recorders that are gone, if these tests started them: other tests run at the same time."""
    from iotwin.tracing_tools.targets.cgroup import _own_cgroup, _pid_namespace

    own = _own_cgroup()
    found = own.glob(f"iotwin-*-{_pid_namespace()}-*") if own else []
    recorders = {path: int(path.name.split("-")[1]) for path in found}
    return [path for path, pid in recorders.items() if pid in STARTED and not Path(f"/proc/{pid}").exists()]
