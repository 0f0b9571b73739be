"""Children, forked, spawned or executed: how they begin with requests held back, die with their parent, and are ended."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.process import BaseProcess

from iotwin.common.processes.starts import die_with_parent, name_process
from iotwin.common.signals import interrupts_held

REQUESTS = (signal.SIGINT, signal.SIGTERM)
_SAFE_PATH = "PYTHONSAFEPATH"  # as python -P, for interpreters that multiprocessing starts by a separate command line


def start(process: BaseProcess) -> None:
    """Start a forked or spawned process with Ctrl-C and SIGTERM held back, until it calls `ready`.

    A signal that arrived earlier, before the child has set its handlers, would run the parent's or end in a traceback.
    """
    with interrupts_held(REQUESTS):
        process.start()


def ready() -> None:
    """Take requests again, in a child that `start` began, or before a program that we execute (a preexec_fn)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, REQUESTS)


def become_loader(index: int, parent_pid: int) -> None:
    """Name this process, let it die with its parent, and leave Ctrl-C to the parent; for a process just forked."""
    _become(f"iotwin-loader{index}", parent_pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave_signals_to_rank(index: int) -> None:
    """Let Ctrl-C end the rank, which then ends its loaders quietly, not each with a traceback; a worker_init_fn of PyTorch's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def become_sampler(parent_pid: int) -> None:
    """The same for the process that samples the machine's disks and CPUs."""
    _become("iotwin-iostat", parent_pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def become_keeper(parent_pid: int) -> None:
    """The same for the process that keeps pages in the page cache."""
    _become("iotwin-keeper", parent_pid)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def become_rank(rank: int, parent_pid: int) -> None:
    """The same for a rank, which on SIGTERM cleans up."""
    _become(f"iotwin-rank{rank}", parent_pid)
    signal.signal(signal.SIGTERM, signal.default_int_handler)


def _become(name: str, parent_pid: int) -> None:
    name_process(name)
    die_with_parent(parent_pid, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def dying_with_us(number: int) -> Callable[[], None]:
    """Return what a program that we execute does before: the kernel sends it the signal `number` when we die (a preexec_fn)."""
    parent_pid = os.getpid()
    return lambda: die_with_parent(parent_pid, number)


def end(process: BaseProcess, grace_s: float, killed_s: float) -> None:
    """Wait `grace_s` for the process to end, then kill it and wait `killed_s`: one stuck in the kernel cannot be waited for."""
    process.join(max(0.0, grace_s))
    if process.is_alive():
        process.kill()
    process.join(killed_s)


def end_programs(programs: Sequence["subprocess.Popen[bytes]"], grace_s: float, whole_session: bool = False) -> None:
    """Ask the programs that still run to end, and kill those that have not after `grace_s`.

    `whole_session`: with all that a program started, which must be the leader of a session.
    """
    for program in programs:
        if program.poll() is None:
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
    """Have the Python processes that are started meanwhile leave the current directory out of sys.path.

    Worker processes of ours import nothing from there: it may be a stranger's or a job's. The variable is taken back before a job
    could inherit it.
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
