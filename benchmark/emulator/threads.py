"""The emulator's threads, which sleep and wait on the run's clock."""

import queue
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from iotwin.benchmark.emulator import waits

_T = TypeVar("_T")
_S = TypeVar("_S")
_POLL_S = 0.1


class ClockThread(threading.Thread):
    """A daemon thread that runs `work`. It starts when the object is created."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(daemon=True, name=name)
        self._work, self._over, self._slot = work, False, waits.reserve()
        self.start()

    def run(self) -> None:
        """Run the work on the clock."""
        waits.enter(self._slot)
        try:
            self._work()
        finally:
            self._over = True
            waits.changed()
            waits.release(self._slot)

    def join(self, timeout: float | None = None) -> None:
        """Wait for the thread's end, at most `timeout` seconds of real time after its end on a virtual clock."""
        waits.wait_on_clock(lambda: self._over)
        super().join(timeout)


class TaskThreads:
    """Threads that run tasks in the order of submission. They start with the first task, in the process that submits it."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._tokens = waits.Tokens()
        self._threads: list[ClockThread] = []
        self._ended = False

    def submit(self, work: Callable[..., _T], *arguments: Any) -> "Future[_T]":
        """Let a thread call `work`, and return the future of its result. Wait for it by `waits.result`."""
        future: Future[_T] = Future()

        def run() -> None:
            if self._ended:
                future.cancel()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work(*arguments))
                except BaseException as error:
                    future.set_exception(error)
            waits.changed()

        while len(self._threads) < self._count:
            self._threads.append(ClockThread(self._serve, self._name))
        self._put(run)
        return future

    def map(self, work: Callable[[_S], _T], items: Iterable[_S]) -> list[_T]:
        """Return the results of `work` for all items, then end. Raises the exception of the first item that failed."""
        try:
            return [waits.result(future) for future in [self.submit(work, item) for item in items]]
        finally:
            self.end()

    def end(self) -> None:
        """End the threads, each after its present task. Later tasks are cancelled."""
        self._ended = True
        for _ in self._threads:
            self._put(None)
        for thread in self._threads:
            thread.join()

    def _put(self, task: Callable[[], None] | None) -> None:
        self._tasks.put(task)
        self._tokens.give()

    def _serve(self) -> None:
        while True:
            self._tokens.take()
            task = self._tasks.get()
            if task is None:
                return
            task()


class BoundedQueue(Generic[_T]):
    """Passes items from one thread to another. It holds at most `size`."""

    def __init__(self, size: int) -> None:
        self._items: queue.Queue[_T] = queue.Queue(size)
        self.room, self._ready = waits.Tokens(size), waits.Tokens()

    def put(self, item: _T, stop: waits.Flag) -> bool:
        """Put `item` into the queue as soon as there is room, and return True. Return False once `stop` is set."""
        self.room.take(gives_up=stop.is_set)
        while not stop.is_set():
            try:
                self._items.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            self._ready.give()
            return True
        return False

    def get(self) -> _T:
        """Wait for the next item, remove it and return it."""
        self._ready.take()
        item = self._items.get()
        self.room.give()
        return item
