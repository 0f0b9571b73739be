"""Children begin with requests held back, die with their parent, and end when they are told to, or later for good."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from iotwin.common.processes import children
from tests.conftest import PATIENCE_S

_fork = multiprocessing.get_context("fork")
_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(600)"


def _tell_mask(pipe) -> None:
    held = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    children.ready()
    pipe.send((held, signal.pthread_sigmask(signal.SIG_BLOCK, ())))


def test_requests_are_held_until_the_child_is_ready_and_not_in_the_parent():
    ours, theirs = _fork.Pipe()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    process = _fork.Process(target=_tell_mask, args=(theirs,))
    children.start(process)
    held, taken = ours.recv()
    assert set(children.REQUESTS) <= held and not set(children.REQUESTS) & taken
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    children.end(process, 60.0, 60.0)
    assert process.exitcode == 0


def test_a_child_that_does_not_end_is_killed():
    process = _fork.Process(target=signal.pause)
    children.start(process)
    children.end(process, 0.0, 60.0)
    assert process.exitcode == -signal.SIGKILL


def test_programs_are_asked_first_and_killed_after():
    stubborn = subprocess.Popen([sys.executable, "-c", _STUBBORN], stdout=subprocess.PIPE, start_new_session=True)
    polite, over = subprocess.Popen(["sleep", "600"]), subprocess.Popen(["true"])
    assert stubborn.stdout is not None and stubborn.stdout.readline()  # it ignores SIGTERM by now
    over.wait()
    children.end_programs([stubborn, polite, over], grace_s=0.3)
    assert [program.returncode for program in (stubborn, polite, over)] == [-signal.SIGKILL, -signal.SIGTERM, 0]
    stubborn.stdout.close()


def test_a_whole_session_is_killed():
    leader = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {_STUBBORN!r}]); {_STUBBORN}"
    session = subprocess.Popen([sys.executable, "-c", leader], stdout=subprocess.PIPE, start_new_session=True)
    assert session.stdout is not None and session.stdout.readline() and session.stdout.readline()
    children.end_programs([session], grace_s=0.1, whole_session=True)
    assert session.stdout.read() == b""  # ends when nobody of them holds it any more
    session.stdout.close()


def test_a_program_gets_its_signal_when_its_parent_is_killed(tmp_path):
    parent = (
        "import os, signal, subprocess, sys, time; from iotwin.common.processes.children import dying_with_us\n"
        "child = subprocess.Popen(['sleep', '600'], preexec_fn=dying_with_us(signal.SIGTERM))\n"
        "print(child.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
    deadline = time.monotonic() + PATIENCE_S
    while Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep"):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_program_whose_parent_is_gone_already_does_not_begin():
    parent = (
        "import os, signal; from iotwin.common.processes.children import dying_with_us\n"
        "begin = dying_with_us(signal.SIGTERM)\n"
        "if os.fork() == 0:\n    middle = os.getpid()\n    if os.fork() == 0:\n        begin(); print('began', flush=True)\n"
        "    os._exit(0)"
    )
    done = subprocess.run([sys.executable, "-c", parent], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout == ""  # its parent is the process between, not the one that meant it


def test_the_process_is_named_for_lists_of_processes():
    ours, theirs = _fork.Pipe()

    def tell() -> None:
        children.become_child("iotwin-loader3", os.getppid())
        theirs.send(Path("/proc/self/comm").read_text())

    process = _fork.Process(target=tell)
    children.start(process)
    assert ours.recv() == "iotwin-loader3\n"
    children.end(process, 60.0, 60.0)
