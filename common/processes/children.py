"""Start and end child processes. No signal interrupts a child before it is ready, and children die with their parent."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

from iotwin.common.processes.process_settings import die_with_parent, name_process
from iotwin.common.signals import interrupts_held

REQUESTS = (signal.SIGINT, signal.SIGTERM)
_SAFE_PATH = "PYTHONSAFEPATH"  # the effect of python's option -P, which multiprocessing cannot pass on


def start(process: BaseProcess) -> None:
    """Start a forked or spawned process with SIGINT and SIGTERM blocked until the child calls `ready`.

    If a signal arrived before the child has set its handlers, the child would run the parent's handlers or print a traceback.
    """
    with interrupts_held(REQUESTS):
        process.start()


def ready() -> None:
    """Unblock SIGINT and SIGTERM in a child that `start` has started. Also usable as a preexec_fn of subprocess."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)


def become_child(name: str, parent_pid: int, cleans_up: bool = False) -> None:
    """Prepare this process, which was just forked: call it `name` in lists of processes, and let it die with its parent.

    From then on, this process ignores Ctrl-C, since its parent handles it. SIGTERM kills the process or, if `cleans_up`, raises
    KeyboardInterrupt in it.
    """
    name_process(name)
    die_with_parent(parent_pid, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler if cleans_up else signal.SIG_DFL)


def leave_signals_to_rank(index: int) -> None:
    """Ignore Ctrl-C in a loader process (a worker_init_fn of PyTorch). Only the rank handles it, without tracebacks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def dying_with_us(number: int) -> Callable[[], None]:
    """Return a preexec_fn for subprocess: when this process dies, the kernel sends the signal `number` to the new program."""
    parent_pid = os.getpid()
    return lambda: die_with_parent(parent_pid, number)


def end(process: BaseProcess, grace_s: float, killed_s: float) -> None:
    """Wait `grace_s` for `process` to end, else kill it. Then wait at most `killed_s`, since it may be stuck in the kernel."""
    process.join(max(0.0, grace_s))
    if process.is_alive():
        process.kill()
    process.join(killed_s)


def end_programs(programs: Sequence["subprocess.Popen[bytes]"], grace_s: float, whole_session: bool = False) -> None:
    """Send SIGTERM to those of `programs` that run, and SIGKILL to those that still run after `grace_s`.

    A program whose stdin is a pipe of this process gets the pipe's end instead of SIGTERM: ssh passes that on, but no signal.
    `whole_session`: SIGKILL goes to the whole process group of a program, which must lead a session.
    """
    for program in programs:
        if program.stdin is not None:
            program.stdin.close()
        elif program.poll() is None:
            program.terminate()
    deadline = time.monotonic() + grace_s
    for program in programs:
        try:
            program.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if whole_session:
                os.killpg(program.pid, signal.SIGKILL)
            else:
                program.kill()
            program.wait()


@contextmanager
def safe_path() -> Iterator[None]:
    """Make Python processes that are started within the block leave the current directory out of sys.path.

    Worker processes must import nothing from a directory that may be a stranger's. The environment variable is restored at the
    end of the block, so that no job inherits it.
    """
    before = os.environ.get(_SAFE_PATH)
    os.environ[_SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_SAFE_PATH]
        else:
            os.environ[_SAFE_PATH] = before
