"""Requests to end - Ctrl-C, a polite kill, a closed terminal - held back or collected while something must not stop halfway."""

import os
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
def interrupts_held(requests: Iterable[signal.Signals] = REQUESTS) -> Iterator[set[int | signal.Signals]]:
    """Let requests to end wait until the end of the block, and yield the signal mask from before it.

    A request that came before raises at the beginning of the block.
    """
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, requests)
    held = _Held(requests)
    try:
        yield mask
    finally:
        held.end()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number in held.received:
            signal.raise_signal(number)


class _Held:
    """Replaces the handlers of requests by one that only notes them.

    The main thread runs Python's handlers for a signal that any other thread received, even if its own mask blocks the signal.
    """

    def __init__(self, requests: Iterable[signal.Signals]) -> None:
        self.received: list[int] = []
        self._pid, self._is_over = os.getpid(), False
        self.handlers: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            handlers = {number: signal.getsignal(number) for number in requests}
            self.handlers = {number: handler for number, handler in handlers.items() if handler not in (signal.SIG_IGN, None)}
        for number in self.handlers:
            signal.signal(number, self._receive)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self._is_over and os.getpid() == self._pid:
            self.received.append(number)
            return
        signal.signal(number, self.handlers[number])  # in a child that was forked meanwhile, or while `end` is at it
        signal.raise_signal(number)

    def end(self) -> None:
        """Restore the handlers, but for those that the block has set itself."""
        self._is_over = True
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)


def _handler(number: int) -> Any:
    """Return the handler of a signal; if the signal is held, the one from before."""
    handler: Any = signal.getsignal(number)
    while isinstance(held := getattr(handler, "__self__", None), _Held):
        handler = held.handlers[number]
    return handler


def interrupted_status() -> int:
    """Return 130, the exit status of a program that was asked to end, and make Python exit with it.

    Python 3.11 remembers a SIGINT that arrives inside `exec`, which every import of a dataclass calls. If it runs a module
    (-m), it then kills itself by SIGINT at exit. The next `exec` clears that memory.
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
            handler = _handler(number)
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
