"""Fork processes that read the job's data for the recorder. They give up root before they read a byte."""

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

from iotwin.common.signals import interrupts_held
from iotwin.tracing_tools.targets.user import User

_LAST_STANDARD_STREAM = 2


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
