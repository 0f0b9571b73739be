"""The virtual clock of an emulated run: real system calls, computed waiting.

All threads of all processes of a run share the clock, in memory that forked processes inherit. Virtual time is CLOCK_MONOTONIC
plus an offset. The offset grows only when no thread runs: then the clock jumps to the time at which the first sleeper is due.
A thread in a system call runs, so that the time of calls is never skipped.

A thread that makes another one able to run marks it as running before it may sleep itself. A new thread is marked by the thread
that starts it. So no thread that is about to run is ever overlooked.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError

_FREE, _RUNNING, _SLEEPING, _WAITING = range(4)
_OFFSET, _USED, _JUMPS, _HEADS = range(4)
_STATE, _DUE, _KEY, _PROCESS, _SEMAPHORE, _SLOT_CELLS = 0, 1, 2, 3, 4, 8  # a semaphore has 32 bytes
_SLOTS = 1 << 16
_MOST_JUMPS = 1 << 21  # jumps whose times are recorded; memory of later ones is not reserved
_CELL_BYTES = 8
_TICK_NS = 500_000_000  # waiting threads look this often whether the run was given up
_LONGEST_LOCK_NS = 10_000_000_000  # the lock is held for microseconds; a process that died while it held it never releases it
_NOTE = "write-back, burst credits and garbage collection of the storage happened in real time, which had fewer idle moments"


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
_libc.sem_post.argtypes = [ctypes.c_void_p]
_libc.sem_trywait.argtypes = [ctypes.c_void_p]
_libc.sem_clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_TimeSpec)]


class ClockFigures(NamedTuple):
    """How far the clock of a run has moved: seconds that it skipped, and the number of its jumps."""

    skipped_s: float = 0.0
    jumps: int = 0


class VirtualClock:
    """A clock that skips the time in which all threads of a run sleep or wait for one another.

    Each thread has a slot. The first `runners` slots are those of processes that run already, or that are about to be forked.
    """

    def __init__(self, runners: int = 1) -> None:
        head, slots = _HEADS * _CELL_BYTES, _SLOTS * _SLOT_CELLS * _CELL_BYTES
        self._memory = mmap.mmap(-1, head + 32 + slots + _MOST_JUMPS * 2 * _CELL_BYTES)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._head = memoryview(self._memory).cast("q")
        cells = np.frombuffer(self._memory, np.int64)
        first = _HEADS + 4
        self._lock = self._address + head
        self._slots = cells[first : first + _SLOTS * _SLOT_CELLS].reshape(_SLOTS, _SLOT_CELLS)
        self._first = first
        self._jumps = cells[first + _SLOTS * _SLOT_CELLS :].reshape(-1, 2)
        _libc.sem_init(self._lock, 1, 1)
        self.begin(self.reserve(runners), runners)

    def now_ns(self) -> int:
        """Return the virtual time in ns."""
        return time.monotonic_ns() + self._head[_OFFSET]

    def figures(self) -> ClockFigures:
        """Return how far the clock has moved until now."""
        return ClockFigures(self._head[_OFFSET] / 1e9, self._head[_JUMPS])

    def jumps(self) -> NDArray[np.int64]:
        """Return (real CLOCK_MONOTONIC in ns, offset in ns from then on) of each jump, shape (jumps, 2)."""
        return self._jumps[: min(self._head[_JUMPS], _MOST_JUMPS)].copy()

    def reserve(self, count: int) -> int:
        """Reserve slots for `count` threads, and return the first one's index."""
        with self.locked():
            first = self._head[_USED]
            if first + count > _SLOTS:
                raise IotwinError(f"twin.clock: a virtual clock has {_SLOTS} threads at most; run with twin.clock=real")
            for slot in range(first, first + count):
                _libc.sem_init(self._semaphore(slot), 1, 0)
            self._head[_USED] = first + count
            return first

    def begin(self, slot: int, count: int = 1) -> None:
        """Count the threads of `count` slots from `slot` on as running. Call this before they are started."""
        with self.locked():
            self._slots[slot : slot + count, _STATE] = _RUNNING
            self._slots[slot : slot + count, _PROCESS] = 0

    def enter(self, slot: int) -> None:
        """Note that the slot's thread belongs to this process, so that the thread ends if the process dies."""
        self._slots[slot, _PROCESS] = os.getpid()

    def end(self, slot: int) -> None:
        """End the thread of the slot, and wake the threads that wait for its end."""
        with self.locked():
            self._slots[slot, _STATE] = _FREE
            self.wake(slot)
            self._advance()

    def has_ended(self, slot: int) -> bool:
        """Return True if the slot has no thread, or its thread has ended."""
        return bool(self._slots[slot, _STATE] == _FREE)

    def end_dead(self) -> int:
        """End the threads of processes that have died, and return their number."""
        slots = self._slots[: self._head[_USED]]
        alive = (slots[:, _STATE] != _FREE) & (slots[:, _PROCESS] > 0)
        dead = [process for process in np.unique(slots[alive, _PROCESS]).tolist() if _is_dead(process)]
        found = np.flatnonzero(alive & np.isin(slots[:, _PROCESS], dead)).tolist()
        for slot in found:
            self.end(slot)
        return len(found)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the clock's lock. Raises IotwinError if a process that holds it has died."""
        if _libc.sem_trywait(self._lock):
            due_ns = time.monotonic_ns() + _LONGEST_LOCK_NS
            while not _wait_until(self._lock, due_ns):  # a signal ends a wait early
                if time.monotonic_ns() > due_ns:
                    raise IotwinError("a process of the run died while it held the clock; run the twin again")
        try:
            yield
        finally:
            _libc.sem_post(self._lock)

    def sleep(self, slot: int, seconds: float, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Let the thread of the slot sleep for `seconds` of virtual time, or until `gives_up` returns True."""
        due_ns, cells = self.now_ns() + int(seconds * 1e9), self._slots[slot]
        with self.locked():
            cells[_DUE], cells[_STATE] = due_ns, _SLEEPING
            self._advance()
        while cells[_STATE] != _RUNNING:
            now_ns = self.now_ns()
            if now_ns >= due_ns or gives_up():
                with self.locked():
                    cells[_STATE] = _RUNNING
                return
            _wait_until(self._semaphore(slot), time.monotonic_ns() + min(due_ns - now_ns, _TICK_NS))

    def wait(self, slot: int, key: int, ready: Callable[[], bool], gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Let the thread of the slot wait until `ready` returns True, which is called under the lock. Return False if given up.

        Whoever makes `ready` return True calls `wake(key)` under the same lock.
        """
        cells = self._slots[slot]
        while True:
            with self.locked():
                is_ready = ready()
                if is_ready or gives_up():
                    cells[_STATE] = _RUNNING
                    return is_ready
                cells[_KEY], cells[_STATE] = key, _WAITING
                self._advance()
            while cells[_STATE] == _WAITING and not gives_up():
                _wait_until(self._semaphore(slot), time.monotonic_ns() + _TICK_NS)

    def wake(self, key: int) -> None:
        """Mark all threads that wait for `key` as running. The lock must be held."""
        slots = self._slots[: self._head[_USED]]
        for slot in np.flatnonzero((slots[:, _STATE] == _WAITING) & (slots[:, _KEY] == key)).tolist():
            self._run(slot)

    def _run(self, slot: int) -> None:
        self._slots[slot, _STATE] = _RUNNING
        _libc.sem_post(self._semaphore(slot))

    def _advance(self) -> None:
        """Jump to the time at which the first sleeper is due, unless a thread runs. The lock must be held."""
        slots = self._slots[: self._head[_USED]]
        states = slots[:, _STATE]
        if (states == _RUNNING).any():
            return
        asleep = np.flatnonzero(states == _SLEEPING)
        if not len(asleep):
            return
        due, real_ns = slots[asleep, _DUE], time.monotonic_ns()
        left_ns = int(due.min()) - real_ns - self._head[_OFFSET]
        if left_ns > 0:
            self._head[_OFFSET] += left_ns
            if self._head[_JUMPS] < _MOST_JUMPS:
                self._jumps[self._head[_JUMPS]] = real_ns, self._head[_OFFSET]
            self._head[_JUMPS] += 1
        for slot in asleep[due <= real_ns + self._head[_OFFSET]].tolist():
            self._run(slot)

    def _semaphore(self, slot: int) -> int:
        return self._address + (self._first + slot * _SLOT_CELLS + _SEMAPHORE) * _CELL_BYTES


def clock_document(clock: VirtualClock | None, virtual_s: float) -> dict[str, Any]:
    """Return the summary's {"kind", "real_s", "virtual_s", "jumps", "note"} of a run that lasted `virtual_s` by its clock.

    `clock`: None if the run's time was real.
    """
    figures = ClockFigures() if clock is None else clock.figures()
    return {
        "kind": "real" if clock is None else "virtual",
        "real_s": virtual_s - figures.skipped_s,
        "virtual_s": virtual_s,
        "jumps": figures.jumps,
        "note": None if clock is None else _NOTE,
    }


def _wait_until(semaphore: int, due_ns: int) -> bool:
    """Wait for the semaphore until `due_ns` (CLOCK_MONOTONIC), or a signal. Return True if it was posted."""
    due = _TimeSpec(due_ns // 1_000_000_000, due_ns % 1_000_000_000)
    return not _libc.sem_clockwait(semaphore, time.CLOCK_MONOTONIC, ctypes.byref(due))


def _is_dead(process: int) -> bool:
    """Return True if the process does not exist, or has ended and was not waited for."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
