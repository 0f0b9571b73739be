"""The live display is a process of the caller's, which reads what the job made, and the trace needs nothing of it."""

import io
import os
import pty
import signal
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iotwin.trace_store.raw.records import whole_names
from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.recorder.live_display import _Growth
from tests.conftest import PATIENCE_S
from tests.processes import children, name_of, root_pid, start, wait_for
from tests.tracing_tools.recorder.test_live_view import mllog
from tests.tracing_tools.recorder.test_live_view import name_of as name_record
from tests.tracing_tools.recorder.test_privileges import NOBODY, SUDO, UNREADABLE

# Reads a file of two-column characters, says its phase, and ends when it is told to.
JOB = """
import os, sys, time
print(sys.argv[2], flush=True)
with open("\\u65e5\\u672c", "rb") as file:
    while not os.path.exists(sys.argv[1]):
        os.pread(file.fileno(), 4096, 0)
        time.sleep(0.01)
    for _ in range(50_000):
        os.pread(file.fileno(), 512, 0)
"""


class Terminal:
    """A terminal, and all that was shown on it."""

    def __init__(self) -> None:
        self._master, self.slave = pty.openpty()
        self.shown = b""
        self._reader = threading.Thread(target=self._read)

    def follow(self) -> None:
        """Read from now on; the other end is our child's alone."""
        os.close(self.slave)
        self._reader.start()

    def _read(self) -> None:
        try:
            while part := os.read(self._master, 1 << 16):
                self.shown += part
        except OSError:
            pass  # the other end is closed

    def all(self) -> str:
        """Everything, once the other end is closed."""
        self._reader.join(PATIENCE_S)
        os.close(self._master)
        return self.shown.decode()


class Live:
    """A live trace on a terminal, its job waiting to be told to end."""

    def __init__(self, place: Path, environment: dict[str, str]) -> None:
        (place / "\u65e5\u672c").write_bytes(bytes(4096))
        (place / "job.py").write_text(JOB)
        self._go, self.trace = place / "go", place / "t"
        line = mllog("START", "epoch", epoch_num=4).strip()
        self.terminal = Terminal()
        self.tracer = start(
            "trace", "-o", self.trace, "--live", "--", "/usr/bin/python3", "-S", "job.py", self._go, line,
            stderr=self.terminal.slave, cwd=place, env={**environment, "COLUMNS": "150", "TERM": "xterm"},
        )  # fmt: skip
        self.terminal.follow()

    def display(self) -> int:
        """The pid of the display, once it shows the job."""
        wait_for(lambda: "epoch 4" in self.terminal.shown.decode(errors="replace"), "the job's phase on the terminal")
        return next(pid for pid in children(self.tracer.pid) if name_of(pid) == "iotwin-live")

    def end(self) -> str:
        """Let the job end; return all that was shown."""
        self._go.touch()
        assert self.tracer.wait(PATIENCE_S) == 0
        return self.terminal.all()

    def is_whole(self) -> bool:
        """Whether the trace has each of the job's last reads and lost none."""
        trace = Trace(self.trace)
        reads = sum(batch["requested"].to_pylist().count(512) for batch in trace.events())
        return trace.manifest.status == "complete" and not trace.manifest.lost_events and reads == 50_000


@pytest.fixture
def unreadable(open_path: Path) -> dict[str, str]:
    """A sudo whose user cannot read where iotwin and Python are installed."""
    (open_path / "shadow").mkdir()
    (open_path / "shadow" / "sitecustomize.py").write_text(UNREADABLE)
    return {**SUDO, "PYTHONPATH": f"{SUDO['PYTHONPATH']}:{open_path / 'shadow'}"}


@pytest.mark.root
def test_who_reads_names_and_log_lines_is_the_caller_and_holds_files_of_the_trace_alone(open_path, unreadable):
    live = Live(open_path, unreadable)
    pid = live.display()
    status = dict(line.split(":\t") for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    held = {int(path.name): str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir()}
    log = str(live.trace / "logs" / "stdout")
    readers = {
        process.parent.name for process in Path("/proc").glob("[0-9]*/fd") for path in process.iterdir() if _is_reader(path, log)
    }
    shown = live.end()
    assert status["Uid"].split() == status["Gid"].split() == [str(NOBODY)] * 4 and "0" not in status["Groups"].split()
    assert {int(status[name], 16) for name in ("CapPrm", "CapEff", "CapInh", "CapAmb")} == {0} and status["NoNewPrivs"] == "1"
    names = sorted(path for number, path in held.items() if number > 2 and not path.startswith("socket:"))
    expected = ["logs/stderr", "logs/stdout", "raw/events.bin", "raw/journal.jsonl", "raw/names.bin"]
    assert names == [str(live.trace / name) for name in expected]
    assert len(held) == 3 + len(names) + 1
    assert readers == {str(pid)}  # not the recorder
    assert "\u65e5\u672c" in shown and "none lost" in shown
    assert live.is_whole()


def _is_reader(descriptor: Path, path: str) -> bool:
    try:
        flags = int((descriptor.parent.parent / "fdinfo" / descriptor.name).read_text().split()[3], 8)
        return str(descriptor.readlink()) == path and flags & os.O_ACCMODE == os.O_RDONLY
    except OSError:
        return False  # closed meanwhile


@pytest.mark.root
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_display_that_is_killed_or_held_costs_the_trace_nothing(open_path, number):
    live = Live(open_path, SUDO)
    pid = live.display()
    os.kill(pid, number)
    shown = live.end()
    assert "the live display ended early" in shown and shown.count("\x1b[?25h") == 1  # its cursor is back
    assert live.is_whole()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the display's end")


@pytest.mark.root
def test_a_display_ends_with_a_recorder_that_is_killed(open_path):
    live = Live(open_path, SUDO)
    pid = live.display()
    job = root_pid(live.trace)
    live.tracer.kill()
    wait_for(lambda: not Path(f"/proc/{pid}").exists(), "the display's end")
    os.kill(job, signal.SIGKILL)
    live.tracer.wait(PATIENCE_S)
    live.terminal.all()


@pytest.mark.root
def test_a_note_of_the_recorder_stands_above_the_tables(open_path):
    live = Live(open_path, SUDO)
    live.display()
    subprocess.run(["kill", "-INT", str(live.tracer.pid)], check=True)
    wait_for(lambda: b"asked the job to end" in live.terminal.shown, "the note")
    assert live.tracer.wait(PATIENCE_S) == 128 + signal.SIGINT
    shown = live.terminal.all()
    assert shown.index("asked the job to end") < shown.rindex("per second")  # drawn anew below it


RECORDS = [name_record(inode, b"/data/" + b"x" * inode) for inode in range(1, 20)]


@given(st.integers(0, len(b"".join(RECORDS))))
def test_a_torn_name_waits_for_its_rest(cut):
    content = b"".join(RECORDS)
    whole = whole_names(content[:cut])
    boundaries = [sum(map(len, RECORDS[:count])) for count in range(len(RECORDS) + 1)]
    assert whole == max(boundary for boundary in boundaries if boundary <= cut)


@given(st.lists(st.integers(0, 3000), min_size=1, max_size=8), st.sampled_from([1, 8, 80]))
def test_what_a_file_has_grown_by_is_seen_once_and_in_whole_rows(growths, row_bytes):
    seen: list[bytes] = []
    with io.FileIO(os.memfd_create("grown"), "r+") as file:
        growth = _Growth(os.dup(file.fileno()), np.dtype((np.void, row_bytes)))
        written = b""
        for size in growths:
            written += (content := os.urandom(size))
            file.write(content)
            seen += [piece.tobytes() for piece in growth.pieces(growth.rows())]
            assert b"".join(seen) == written[: len(written) // row_bytes * row_bytes]
