"""A job that leaves its cgroup: all its calls are recorded, those of threads, children and orphans too."""

import signal
import subprocess
import sys

import pytest

from iotwin.trace_store.reader import Trace
from iotwin.tracing_tools.backends.choose_backend import unavailable_reason
from iotwin.tracing_tools.targets.cgroup_mounts import cgroup2_mount
from tests.conftest import PATIENCE_S, run_iotwin
from tests.processes import start, wait_for
from tests.tracing_tools.recorder.test_capture import on_path, python

pytestmark = pytest.mark.root

_LEAVER = """
import os, sys, threading, time
target, procs = sys.argv[1:]
fd = os.open(target, os.O_RDONLY)
def reads(count):
    for _ in range(count):
        os.pread(fd, 10, 3)
def leave():
    with open(procs, "w") as file:
        file.write("0")
"""


def leaver(tmp_path, body: str) -> list[str]:
    target = tmp_path / "target"
    target.write_bytes(bytes(4096))
    return [sys.executable, "-c", _LEAVER + body, str(target), f"{cgroup2_mount()}/cgroup.procs"]


def preads(trace: Trace, tmp_path) -> list[int]:
    """The job's own preads, by process."""
    events = on_path(trace, str(tmp_path / "target"))
    return events[events["op"] == "pread64"].groupby("pid", sort=False).size().tolist()


@pytest.mark.parametrize("backend", ["libbpf", "bcc", "bpftrace", "strace"])
def test_a_job_that_leaves_is_followed(tmp_path, backend):
    if reason := unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    result = run_iotwin(
        "trace", "-o", tmp_path / "t", "--backend", backend, "--", *leaver(tmp_path, "reads(7); leave(); reads(100)")
    )
    assert result.returncode == 0, result.stderr
    assert preads(Trace(tmp_path / "t"), tmp_path) == [107]
    if backend in ("libbpf", "bcc"):
        assert "1 of the job's processes left its cgroup" in result.stderr


@pytest.mark.parametrize("backend", ["libbpf", "bcc"])
def test_what_a_job_starts_after_it_left_is_followed_and_waited_for(tmp_path, backend):
    if reason := unavailable_reason(backend):
        pytest.skip(f"no {backend} here: {reason}")
    body = """
leave()
reads(1)
thread = threading.Thread(target=reads, args=(10,)); thread.start(); thread.join()
if os.fork() == 0:
    reads(20)
    if os.fork() == 0:
        time.sleep(0.5)
        reads(30)
"""
    result = run_iotwin("trace", "-o", tmp_path / "t", "--backend", backend, "--", *leaver(tmp_path, body))
    assert result.returncode == 0, result.stderr
    assert preads(Trace(tmp_path / "t"), tmp_path) == [11, 20, 30]
    assert "3 of the job's processes left its cgroup" in result.stderr


def test_a_process_that_another_moves_before_its_first_call_is_followed(tmp_path):
    """The child asks for nothing that is traced before its parent has moved it, and outlives the parent."""
    body = """
pid = os.fork()
if pid == 0:
    signal.sigwait([signal.SIGUSR1])
    time.sleep(0.5)
    reads(40)
    os._exit(0)
with open(procs, "w") as file:
    file.write(str(pid))
os.kill(pid, signal.SIGUSR1)
"""
    blocked = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])\n"
    result = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "libbpf", "--", *leaver(tmp_path, blocked + body))
    assert result.returncode == 0, result.stderr
    assert preads(Trace(tmp_path / "t"), tmp_path) == [40]


def test_nobody_else_is_followed(tmp_path):
    """A neighbour where the job goes to reads the same file, and is not in the trace."""
    command = leaver(tmp_path, "leave(); reads(100)")
    loop = f"import os\nfd = os.open({str(tmp_path / 'target')!r}, 0)\nwhile True: os.pread(fd, 10, 3)"
    with subprocess.Popen([sys.executable, "-c", loop]) as neighbour:
        try:
            result = run_iotwin("trace", "-o", tmp_path / "t", "--backend", "libbpf", "--", *command)
        finally:
            neighbour.kill()
    assert result.returncode == 0, result.stderr
    assert preads(Trace(tmp_path / "t"), tmp_path) == [100]


def test_an_interrupt_reaches_what_has_left(tmp_path):
    body = """
leave()
reads(1)
if os.fork() == 0:
    reads(1)
    print("ready", flush=True)
    time.sleep(600)
os.wait()
"""
    tracer = start("trace", "-o", tmp_path / "t", "--backend", "libbpf", "--", *leaver(tmp_path, body))
    log = tmp_path / "t" / "logs" / "stdout"
    wait_for(lambda: log.exists() and "ready" in log.read_text(), "the child")
    tracer.send_signal(signal.SIGINT)
    tracer.communicate(timeout=PATIENCE_S)
    assert Trace(tmp_path / "t").manifest.status == "complete"


def test_a_job_that_stays_leaves_no_note(tmp_path):
    trace = python(tmp_path, "import os; os.fork()")
    assert not any("left its cgroup" in note for note in trace.manifest.notes)
