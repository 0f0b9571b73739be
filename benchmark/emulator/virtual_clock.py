"""The virtual clock of an emulated run: real system calls, computed waiting.

All threads of all processes of a run share the clock, in memory that forked processes inherit. Virtual time is CLOCK_MONOTONIC
plus an offset. The offset grows only when no thread runs: then the clock jumps to the time at which the first sleeper is due.
A thread in a system call runs, so that the time of calls is never skipped.

A thread that enables another thread to run marks that thread as running, before it may sleep itself. The thread that starts a
new thread marks the new thread. So the clock never overlooks a thread that is about to run.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.files import open_whole
from iotwin.common.mllog import JUMPS, JUMPS_OF_LINE, MlLog

JUMPS_NAME = "clock.parquet"
CHANGED = 1 << 60  # key of waits for conditions of any kind; the thread that makes one true wakes all that wait
_UNUSED, _ENDED, _RUNNING, _SLEEPING, _WAITING = range(5)  # an ended slot is reserved for a thread that does not run
_OFFSET, _USED, _JUMPS, _AWAKE, _DEATHS, _HEADS = range(6)  # _AWAKE: number of running threads
_STATE, _DUE, _KEY, _PROCESS, _SEMAPHORE, _SLOT_CELLS = 0, 1, 2, 3, 4, 8  # a semaphore has 32 bytes
_SLOTS = 1 << 16
_MOST_JUMPS = 1 << 21  # jumps whose times are recorded; memory of later ones is not reserved
_CELL_BYTES = 8
_TICK_NS = 500_000_000  # waiting threads check at this interval whether the run was given up
_LONGEST_LOCK_NS = 10_000_000_000  # the lock is held for microseconds; a process that died while it held it never releases it


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
        self._cells = memoryview(self._memory).cast("q")  # the head, the lock, the slots, the jumps
        cells = np.frombuffer(self._memory, np.int64)
        self._first = first = _HEADS + 4
        self._lock = self._address + head
        self._slots = cells[first : first + _SLOTS * _SLOT_CELLS].reshape(_SLOTS, _SLOT_CELLS)
        self._jumps = cells[first + _SLOTS * _SLOT_CELLS :].reshape(-1, 2)
        _libc.sem_init(self._lock, 1, 1)
        self.begin(self.reserve(runners), runners)

    def now_ns(self) -> int:
        """Return the virtual time in ns."""
        return time.monotonic_ns() + self._cells[_OFFSET]

    def figures(self) -> ClockFigures:
        """Return how far the clock has moved until now."""
        return ClockFigures(self._cells[_OFFSET] / 1e9, self._cells[_JUMPS])

    def jumps(self) -> NDArray[np.int64]:
        """Return (real CLOCK_MONOTONIC in ns, sum of the jumps so far in ns) of each jump, shape (jumps, 2)."""
        return self._jumps[: min(self._cells[_JUMPS], _MOST_JUMPS)].copy()

    def reserve(self, count: int = 1) -> int:
        """Reserve slots for `count` threads, and return the first one's index. Free them by `release`."""
        with self.locked():
            used = self._cells[_USED]
            free = np.flatnonzero(self._slots[:used, _STATE] == _UNUSED)
            first = int(free[0]) if count == 1 and len(free) else used
            if first + count > _SLOTS:
                raise IotwinError(f"twin.clock: a virtual clock has {_SLOTS} threads at most; run with twin.clock=real")
            for slot in range(first, first + count):
                _libc.sem_init(self._semaphore(slot), 1, 0)
            self._slots[first : first + count, _STATE] = _ENDED
            self._cells[_USED] = max(used, first + count)
            return first

    def release(self, first: int, count: int = 1) -> None:
        """Free slots that `reserve` has reserved. Their threads have ended, or been killed."""
        with self.locked():
            for slot in range(first, first + count):
                self._mark(slot, _UNUSED)
            while self._cells[_USED] and self._slots[self._cells[_USED] - 1, _STATE] == _UNUSED:
                self._cells[_USED] -= 1
            self._advance()

    def begin(self, slot: int, count: int = 1) -> None:
        """Count the threads of `count` slots from `slot` on as running. Call this before they are started."""
        with self.locked():
            for each in range(slot, slot + count):
                self._mark(each, _RUNNING)
            self._slots[slot : slot + count, _PROCESS] = 0

    def enter(self, slot: int) -> None:
        """Record that the slot's thread belongs to this process. If the process dies, `end_dead` then ends the thread."""
        self._slots[slot, _PROCESS] = os.getpid()

    def end(self, slot: int) -> None:
        """End the thread of the slot, and wake the threads that wait for its end."""
        with self.locked():
            self._mark(slot, _ENDED)
            self.wake(slot)
            self._advance()

    def has_ended(self, slot: int) -> bool:
        """Return True if the slot has no thread, or its thread has ended."""
        return self._cells[self._base(slot) + _STATE] <= _ENDED

    def end_dead(self) -> int:
        """End the threads of processes that have died. Return the number of such threads in the whole run."""
        slots = self._slots[: self._cells[_USED]]
        state, process = slots[:, _STATE], slots[:, _PROCESS]
        dead = [each for each in np.unique(process[(state > _ENDED) & (process > 0)]).tolist() if _is_dead(each)]
        # A process may have ended its threads, and then itself, since the line before read the states. So they are read again.
        for slot in np.flatnonzero((state > _ENDED) & np.isin(process, dead)).tolist():
            self._cells[_DEATHS] += 1
            self.end(slot)
        return self._cells[_DEATHS]

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
        due_ns, base, cells = self.now_ns() + int(seconds * 1e9), self._base(slot), self._cells
        with self.locked():
            cells[base + _DUE] = due_ns
            self._mark(slot, _SLEEPING)
            self._advance(slot)
        while cells[base + _STATE] != _RUNNING:
            now_ns = self.now_ns()
            if now_ns >= due_ns or gives_up():
                with self.locked():
                    self._mark(slot, _RUNNING)
                return
            self._wait_for_post(slot, min(due_ns - now_ns, _TICK_NS))

    def wait(self, slot: int, key: int, ready: Callable[[], bool], gives_up: Callable[[], bool] = lambda: False) -> bool:
        """Let the thread of the slot wait until `ready` returns True, which is called under the lock. Return False if given up.

        Whoever makes `ready` return True calls `wake(key)` under the same lock.
        """
        base, cells = self._base(slot), self._cells
        while True:
            with self.locked():
                is_ready = ready()
                if is_ready or gives_up():
                    self._mark(slot, _RUNNING)
                    return is_ready
                cells[base + _KEY] = key
                self._mark(slot, _WAITING)
                self._advance()
            while cells[base + _STATE] == _WAITING and not gives_up():
                self._wait_for_post(slot, _TICK_NS)

    def wake(self, key: int) -> None:
        """Mark all threads that wait for `key` as running. The lock must be held."""
        slots = self._slots[: self._cells[_USED]]
        for slot in np.flatnonzero((slots[:, _STATE] == _WAITING) & (slots[:, _KEY] == key)).tolist():
            self._run(slot)

    def _wait_for_post(self, slot: int, longest_ns: int) -> None:
        """Wait until another thread wakes the slot's thread, for at most `longest_ns`. After a whole tick, find dead threads."""
        if not _wait_until(self._semaphore(slot), time.monotonic_ns() + longest_ns) and longest_ns == _TICK_NS:
            self.end_dead()

    def _mark(self, slot: int, state: int) -> None:
        """Set the state of the slot's thread. The lock must be held."""
        at = self._base(slot) + _STATE
        self._cells[_AWAKE] += (state == _RUNNING) - (self._cells[at] == _RUNNING)
        self._cells[at] = state

    def _run(self, slot: int) -> None:
        self._mark(slot, _RUNNING)
        _libc.sem_post(self._semaphore(slot))

    def _advance(self, caller: int = -1) -> None:
        """Jump to the time at which the first sleeper is due, unless a thread runs. The lock must be held.

        `caller`: the slot of the calling thread if it sleeps; no post needs to wake it.
        """
        if self._cells[_AWAKE]:
            return
        slots = self._slots[: self._cells[_USED]]
        asleep = np.flatnonzero(slots[:, _STATE] == _SLEEPING)
        if not len(asleep):
            return
        due, real_ns = slots[asleep, _DUE], time.monotonic_ns()
        left_ns = int(due.min()) - real_ns - self._cells[_OFFSET]
        if left_ns > 0:
            self._cells[_OFFSET] += left_ns
            if self._cells[_JUMPS] < _MOST_JUMPS:
                self._jumps[self._cells[_JUMPS]] = real_ns, self._cells[_OFFSET]
            self._cells[_JUMPS] += 1
        for slot in asleep[due <= real_ns + self._cells[_OFFSET]].tolist():
            if slot == caller:
                self._mark(slot, _RUNNING)
            else:
                self._run(slot)

    def _base(self, slot: int) -> int:
        """Return the index of the slot's first cell."""
        return self._first + slot * _SLOT_CELLS

    def _semaphore(self, slot: int) -> int:
        return self._address + (self._base(slot) + _SEMAPHORE) * _CELL_BYTES


def write_jumps(clock: VirtualClock, folder: Path) -> None:
    """Write the jumps of the clock as a Parquet table: real_ns (CLOCK_MONOTONIC), and skipped_ns, the sum of the jumps so far."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from iotwin.trace_store.columns import column

    columns = [column(values, pa.int64()) for values in clock.jumps().T]
    with open_whole(folder / JUMPS_NAME) as file:
        pq.write_table(pa.Table.from_arrays(columns, ["real_ns", "skipped_ns"]), file, compression="zstd")


def log_jumps(clock: VirtualClock, log: MlLog) -> None:
    """Log all jumps of the clock for a tracer, unless there were more than the clock records."""
    real_ns, skipped_ns = clock.jumps().T
    if len(real_ns) < clock.figures().jumps:
        return
    words = [f"{at},{length}" for at, length in zip(real_ns.tolist(), np.diff(skipped_ns, prepend=0).tolist(), strict=True)]
    for first in range(0, len(words), JUMPS_OF_LINE):
        log.point(JUMPS, " ".join(words[first : first + JUMPS_OF_LINE]))


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
