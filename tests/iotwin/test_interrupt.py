"""Ctrl-C at any step: exit status 130, one line, nothing half-written under a final name, no process left."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import PATIENCE_S, ROOT
from tests.processes import one_line, press_ctrl_c, start, wait_for
from tests.synthetic import MILLISECOND, Job, write_job


@pytest.fixture(scope="module")
def long_trace(tmp_path_factory) -> Path:
    """A trace that takes seconds to read, so that there is a moment to interrupt."""
    job = Job(files=1000, evaluation_files=0, epochs=8, compute_ns=MILLISECOND, file_bytes=1 << 18, read_bytes=1 << 13)
    return write_job(tmp_path_factory.mktemp("long") / "long.trace", job)


def test_generate(tmp_path):
    data = tmp_path / "data"
    running = start("generate", "unet3d", "-o", data, "--samples", "400", "--scale", "0.4", "--workers", "2")
    wait_for(lambda: list(data.glob("case_*_y.npy")), "the first case")
    result = press_ctrl_c(running)
    assert result.returncode == 130
    assert one_line(result) == "iotwin generate: interrupted"
    assert not (data / "manifest.json").exists()
    for image in data.glob("case_*.npy"):
        assert image.stat().st_size > 0


def test_one_that_comes_while_python_runs_a_text(tmp_path):
    """As at every import of a dataclass: Python 3.11 then kills itself at the end, unless it is made to forget."""
    (tmp_path / "begun.py").write_text(
        "import sys\nfrom iotwin import main\nfrom iotwin.commands.info import InfoCommand\n"
        "InfoCommand.run = lambda self, args: exec('raise KeyboardInterrupt')\nsys.exit(main.main(['info', 'x.trace']))\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    result = subprocess.run([sys.executable, "-m", "begun"], capture_output=True, text=True, env=environment)
    assert result.returncode == 130 and one_line(result) == "iotwin info: interrupted"


@pytest.mark.parametrize("command", ["compare", "report", "plot", "fit", "info"])
def test_readers(command, long_trace, tmp_path):
    output = tmp_path / {"report": "r.html", "plot": "t.png", "fit": "t.yaml"}.get(command, "none")
    arguments = {
        "compare": ["compare", long_trace, long_trace],
        "report": ["report", long_trace, "-o", output],
        "plot": ["plot", "timeline", long_trace, "-o", output],
        "fit": ["fit", long_trace, "-o", output],
        "info": ["info", long_trace],
    }[command]
    result = _interrupted_at_work(arguments, str(long_trace / "events.parquet"))
    assert result.returncode == 130, result.stderr
    assert one_line(result) == f"iotwin {command}: interrupted"
    assert not list(tmp_path.iterdir())


def _interrupted_at_work(arguments: list[str | Path], events: str) -> subprocess.CompletedProcess[str]:
    """Press Ctrl-C while the command has the events open: past its imports, and at work.

    It is stopped for that, as it may have gone on by the time that a busy machine comes back to the test.
    """
    for _ in range(20):
        running = start(*arguments)
        wait_for(lambda: running.poll() is not None or _has_open(running.pid, events), "the command at work")  # noqa: B023
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGSTOP)
        wait_for(lambda: running.poll() is not None or _is_stopped(running.pid), "the command stopped")  # noqa: B023
        if _has_open(running.pid, events):
            return press_ctrl_c(running)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.pid, signal.SIGKILL)
        running.communicate()
    raise AssertionError("the command had always read the trace before it could be interrupted; make the trace longer")


def _is_stopped(pid: int) -> bool:
    with contextlib.suppress(OSError):  # a thread ended meanwhile
        return all(path.read_text().rpartition(")")[2].split()[0] == "T" for path in Path(f"/proc/{pid}/task").glob("*/stat"))
    return False


def _has_open(pid: int, prefix: str) -> bool:
    try:
        return any(str(link.readlink()).startswith(prefix) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # a descriptor was closed meanwhile, or the process has ended


def test_an_interrupt_in_the_fork_itself_is_not_lost(tmp_path):
    """Python drops what its hooks around a fork raise, and with it a Ctrl-C that arrives there."""
    code = """
import os, signal, sys
from pathlib import Path
from iotwin.tracing_tools.targets.command import StartedCommand
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
try:
    StartedCommand(["true"], Path(sys.argv[1]), None)
except KeyboardInterrupt:
    try:
        os.waitpid(-1, 0)
    except ChildProcessError:
        print("interrupted, no child left")
"""
    done = subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "interrupted, no child left\n", done.stderr
