"""Fork processes that read the job's data for the recorder. They give up root before they read a byte."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from iotwin.common.files import write_fully
from iotwin.common.signals import interrupts_held
from iotwin.tracing_tools.targets.user import User

_LAST_STANDARD_STREAM = 2
_PIECE_BYTES = 1 << 16


def fork_apart(work: Callable[[], None]) -> int:
    """Run `work` in a forked process and return its pid. The process ends after `work`, with status 1 if `work` failed."""
    with interrupts_held():  # Python loses a Ctrl-C that arrives in its hooks around a fork
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
    return child


def answer_of(work: Callable[[int], bytes]) -> bytes:
    """Run `work` in a forked process and return the result of `work`; b"" if the process was killed.

    `work` gets the descriptor through which its result is sent, which it must not close.
    """
    answers, ours = os.pipe()

    def run() -> None:
        content = work(ours)
        with contextlib.suppress(OSError):
            write_fully(ours, content)

    child = fork_apart(run)
    os.close(ours)
    try:
        return b"".join(iter(lambda: os.read(answers, _PIECE_BYTES), b""))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(answers)
        os.waitpid(child, 0)


def leave_root(user: User | None, kept: set[int], requests: signal.Handlers) -> None:
    """Run in the forked process: close all descriptors but the standard streams and `kept`, and become `user`, if not None.

    `requests`: the handler to set for Ctrl-C and SIGTERM, SIG_DFL or SIG_IGN.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, requests)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGINT, signal.SIGTERM))
    for descriptor in (int(path.name) for path in [*Path("/proc/self/fd").iterdir()]):
        if descriptor > _LAST_STANDARD_STREAM and descriptor not in kept:
            with contextlib.suppress(OSError):
                os.close(descriptor)
    if user is not None:
        user.become()
