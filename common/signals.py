"""Delay or collect the signals that ask a process to end (SIGINT, SIGTERM, SIGHUP) while work must not stop halfway."""

import os
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

REQUESTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_ONE_REQUEST_S = 0.1  # signals closer together count as one: timeout(1) signals a process and then its group


@contextmanager
def interrupts_held(requests: Iterable[signal.Signals] = REQUESTS) -> Iterator[set[int | signal.Signals]]:
    """Delay the signals `requests` until the end of the block, and yield the signal mask from before the block.

    A signal that arrived before the block is handled at the beginning of the block.
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
    """Replaces the handlers of the signals `requests` by a handler that only appends the signal's number to `received`.

    A signal mask alone does not suffice: if another thread receives a signal, the main thread still runs the handler.
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
        signal.signal(number, self.handlers[number])  # only in a forked child, or while `end` runs
        signal.raise_signal(number)

    def end(self) -> None:
        """Restore the original handlers, except where other code has set a new handler since."""
        self._is_over = True
        for number, handler in self.handlers.items():
            if signal.getsignal(number) == self._receive:
                signal.signal(number, handler)


def _handler(number: int) -> Any:
    """Return the handler of the signal `number`. Within `interrupts_held`, it is the handler from before that block."""
    handler: Any = signal.getsignal(number)
    while isinstance(held := getattr(handler, "__self__", None), _Held):
        handler = held.handlers[number]
    return handler


def interrupted_status() -> int:
    """Return 130, the exit status after Ctrl-C, and make sure that Python really exits with it.

    Python 3.11 remembers a SIGINT that arrives inside `exec`, which every definition of a dataclass calls. If started with -m,
    Python then kills itself by SIGINT at exit. A second `exec` clears the remembered signal.
    """
    exec("")  # noqa: S102
    return 130


class Requests:
    """Between `collect` and `restore`, collects signals that ask this process to end, instead of raising KeyboardInterrupt."""

    def __init__(self) -> None:
        self._received: list[int] = []
        self._last_s = -_ONE_REQUEST_S
        self._handlers: dict[int, Any] = {}

    def collect(self, even_ignored: bool) -> None:
        """Start to collect signals. Signals that are ignored, as SIGHUP under nohup, remain ignored unless `even_ignored`."""
        if threading.current_thread() is not threading.main_thread():
            return  # only the main thread may set handlers
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
        """Remove the oldest collected signal and return its number; None if there is none."""
        return self._received.pop(0) if self._received else None

    def restore(self) -> None:
        """Restore the handlers from before `collect`."""
        while self._handlers:
            signal.signal(*self._handlers.popitem())
