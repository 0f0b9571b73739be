"""Time, sleeps and waits of an emulated run, on the run's clock.

Time is real unless `on_virtual_clock` is in effect, for this process and those that it forks. Then each thread has a slot of the
virtual clock, and waits twice. It first waits on the clock, until another thread announces what the wait is for. It then waits
for real, which takes as long as the delivery. So the same code runs on either clock, and makes the same calls.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from iotwin.benchmark.emulator.virtual_clock import CHANGED, VirtualClock
from iotwin.common.numbers.sleeper import LONGEST_DELAY_NS, Sleeper

_STEP_OF_RANK_NS = 2_000_000  # time for a rank's wake-up, which takes 0.1 ms of CPU with 256 ranks, and more under load
_POLL_S = 1e-3  # seconds between two checks of a condition, if time is real and no thread announces the change
_clock: VirtualClock | None = None
_thread = threading.local()  # `slot`: this thread's; missing if the clock does not know the thread, such as one of a plug-in


@contextmanager
def on_virtual_clock(ranks: int) -> Iterator[VirtualClock]:
    """Put this process and those that it forks on a new virtual clock. Rank i has slot i; a single rank is this process."""
    global _clock
    _clock = clock = VirtualClock(ranks)
    try:
        if ranks == 1:
            enter(0)
        yield clock
    finally:
        if ranks == 1:
            leave()
        _clock = None


def virtual_clock() -> VirtualClock | None:
    """Return the run's virtual clock; None if its time is real."""
    return _clock


def now_ns() -> int:
    """Return the time in ns: CLOCK_MONOTONIC, or that of the virtual clock."""
    return time.monotonic_ns() if _clock is None else _clock.now_ns()


def now_s() -> float:
    """Return the time of `now_ns` in seconds."""
    return now_ns() / 1e9


def wall_s() -> float:
    """Return the UNIX time in seconds, later by the time that a virtual clock has skipped."""
    return time.time() + skipped_s()


def skipped_s() -> float:
    """Return how many seconds a virtual clock has skipped so far; 0 if time is real."""
    return 0.0 if _clock is None else _clock.figures().skipped_s


def sleep(seconds: float) -> None:
    """Sleep for `seconds`. If `seconds` is not positive, return at once."""
    if seconds <= 0:
        return
    clock, slot = _clock, _slot()
    if clock is None or slot is None:
        time.sleep(seconds)
    else:
        clock.sleep(slot, seconds)


def sleep_until(due_ns: int) -> None:
    """Sleep until `due_ns`, in ns of `now_ns`; at once if that has passed."""
    sleep((due_ns - now_ns()) / 1e9)


def new_sleeper(busy: bool = False, ranks_here: int = 1) -> Sleeper:
    """Return a `Sleeper` on the run's clock. `busy`: it keeps a CPU busy in place of sleeping.

    Later sleeps are shortened by delays of up to 10 ms, plus 2 ms for each rank that shares a CPU. The reason is that ranks wake
    up at the same moment, and then wait for a CPU. Ranks on real accelerators would not wait for a CPU.
    """
    shared = ranks_here / len(os.sched_getaffinity(0))
    return Sleeper(busy, now_ns, sleep, LONGEST_DELAY_NS + int(shared * _STEP_OF_RANK_NS))


def reserve() -> int | None:
    """Reserve a slot for a thread or process that is about to start, which counts as running; None if time is real."""
    if _clock is None:
        return None
    slot = _clock.reserve()
    _clock.begin(slot)
    return slot


def enter(slot: int | None) -> None:
    """Assign the slot to this thread."""
    _thread.slot = slot
    if _clock is not None and slot is not None:
        _clock.enter(slot)


def leave() -> None:
    """End this thread on the clock."""
    slot = _slot()
    if _clock is not None and slot is not None:
        _clock.end(slot)
    _thread.slot = None


def wait_for_end(slot: int | None) -> None:
    """Wait on a virtual clock until the process or thread of the slot has ended or died."""
    clock, own = _clock, _slot()
    if clock is not None and slot is not None and own is not None:
        clock.wait(own, slot, lambda: clock.has_ended(slot))


def release(slot: int | None) -> None:
    """Free the slot of a process or thread that has ended, or been killed."""
    if _clock is not None and slot is not None:
        _clock.release(slot)


def has_ended(slot: int | None) -> bool:
    """Return True if time is virtual, and the slot's process or thread has ended or died."""
    return _clock is not None and slot is not None and _clock.has_ended(slot)


def wait_on_clock(ready: Callable[[], bool], gives_up: Callable[[], bool] = lambda: False) -> None:
    """Wait on a virtual clock until `ready` or `gives_up` returns True. The thread that causes it then calls `changed`."""
    clock, slot = _clock, _slot()
    if clock is not None and slot is not None:
        clock.wait(slot, CHANGED, ready, gives_up)


def changed() -> None:
    """On a virtual clock, wake the threads that wait for any condition, so that they check whether it is true now."""
    if _clock is not None:
        with _clock.locked():
            _clock.wake(CHANGED)


def wait_until(ready: Callable[[], bool], gives_up: Callable[[], bool]) -> bool:
    """Wait until `ready` returns True. Return False if `gives_up` did so first."""
    wait_on_clock(ready, gives_up)
    while not ready():
        if gives_up():
            return False
        time.sleep(_POLL_S)
    return True


def result(future: "Future[Any]") -> Any:
    """Wait for the future's result and return it. Raises the exception of its task."""
    wait_on_clock(future.done)
    return future.result()


def _slot() -> int | None:
    slot: int | None = getattr(_thread, "slot", None)
    return slot


class Tokens:
    """Counts tokens on a virtual clock. A thread that has taken a token can wait for a pipe or queue in real time without delay.

    A sender gives a token before a send that may block. A receiver takes a token before it receives. Real time needs no tokens.
    """

    def __init__(self, count: int = 0) -> None:
        if _clock is not None:
            memory = mmap.mmap(-1, mmap.PAGESIZE)
            self._key = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            self._held = memoryview(memory).cast("q")
            self._held[0] = count

    def give(self, count: int = 1) -> None:
        """Add `count` tokens, and wake those who wait for them."""
        if _clock is not None:
            with _clock.locked():
                self._held[0] += count
                _clock.wake(self._key)

    def take(self, count: int = 1, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for `count` tokens and take them, or wait until `gives_up` returns True."""
        clock, slot = _clock, _slot()
        if clock is None or slot is None:
            return

        def takes() -> bool:
            enough = self._held[0] >= count
            if enough:
                self._held[0] -= count
            return enough

        clock.wait(slot, self._key, takes, gives_up)


class EventCounter:
    """A counter of the kernel (eventfd), by which processes wait for one another.

    If `single` is True, a read subtracts 1 from the counter. If it is False, a read resets the counter to 0.
    """

    def __init__(self, single: bool) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | (os.EFD_SEMAPHORE if single else 0))
        self._tokens = Tokens()

    def give(self, count: int = 1) -> None:
        """Add `count` to the counter, and wake the processes that wait for it."""
        self._tokens.give(count)
        os.eventfd_write(self._descriptor, count)

    def take(self, count: int = 1) -> None:
        """Wait until `count` were added to the counter, and subtract them. Only one process may wait for more than 1."""
        self._tokens.take(count)
        while count > 0:
            count -= os.eventfd_read(self._descriptor)

    def close(self) -> None:
        """Close the counter, in the process that made it."""
        os.close(self._descriptor)


class Flag:
    """An event (`threading.Event`) for which threads of a process wait on the run's clock."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.is_set, self.clear = self._event.is_set, self._event.clear

    def set(self) -> None:
        """Set the flag, and wake all who wait for it."""
        self._event.set()
        changed()

    def wait(self) -> None:
        """Wait until the flag is set."""
        wait_on_clock(self.is_set)
        self._event.wait()


class Turn:
    """A lock that a thread of a process may hold while it sleeps."""

    def __init__(self) -> None:
        self._lock, self._tokens = threading.Lock(), Tokens(1)

    def __enter__(self) -> None:
        self._tokens.take()
        self._lock.acquire()

    def __exit__(self, *exception: object) -> None:
        self._lock.release()
        self._tokens.give()
