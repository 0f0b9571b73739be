"""Requests to end - Ctrl-C, a polite kill, a closed terminal - held back or collected while something must not stop halfway."""

import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_REQUEST_S = 0.1  # no person asks twice within it, but timeout(1) signals a process and then its group


@contextmanager
def interrupts_held(requests: Iterable[signal.Signals] = REQUESTS) -> Iterator[None]:
    """Let requests to end wait until the end of the block; one that came before raises at its beginning."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, requests)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def interrupted_status() -> int:
    """Return the exit status of a program that ends because it was asked to, 130, and see to it that Python ends with that.

    Run as a module (-m), Python 3.11 kills itself by SIGINT instead, even at an exit that was asked for, if the request came
    while it ran a text, as every import of a dataclass does; the next text that it runs makes it forget that.
    """
    exec("")  # noqa: S102
    return 130


class Requests:
    """Collects the requests to end instead of raising KeyboardInterrupt, between `collect` and `restore`."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._last_s = -_ONE_REQUEST_S
        self._handlers: dict[int, Any] = {}

    def collect(self, even_ignored: bool) -> None:
        """Begin; signals that our caller had us ignore stay ignored unless `even_ignored`."""
        if threading.current_thread() is not threading.main_thread():
            return  # signals are the main thread's
        for number in REQUESTS:
            handler = signal.getsignal(number)
            if even_ignored or handler is not signal.SIG_IGN:
                self._handlers[number] = handler
                signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._last_s >= _ONE_REQUEST_S:
            self._received.append(number)
        self._last_s = now

    def take(self) -> int | None:
        """Return the number of the first request that was not taken yet, or None."""
        return self._received.pop(0) if self._received else None

    def restore(self) -> None:
        """Let requests raise again, as before `collect`."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())
