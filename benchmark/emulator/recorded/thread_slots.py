"""The slots of a recording's threads in a virtual clock, the keys of what they wait for, and when bytes in pipes were due."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field

from iotwin.benchmark.emulator.virtual_clock import VirtualClock
from iotwin.workload_yaml.recording import Header

# Kinds of keys: bytes in a pipe, room in a pipe, a post on a channel. To wait for a thread's end, the key is the thread's slot.
PIPE, ROOM, POST = ((kind << 56) for kind in (1, 2, 3))
_WRITTEN, _READ, _FIRST, _NEXT, _ROOM, _HEAD = range(6)
_ENTRIES = 1024  # writes of a pipe whose times are held; the last entry also stands for further ones


class PipeTimes:
    """When the bytes in each pipe were due. Forked processes share this memory, so use it only under the clock's lock."""

    def __init__(self, pipes: int) -> None:
        self._width = _HEAD + 2 * _ENTRIES
        self._cells = memoryview(mmap.mmap(-1, max(pipes, 1) * self._width * 8)).cast("q")

    def held(self, pipe: int) -> int:
        """Return the number of bytes in a pipe."""
        first = pipe * self._width
        return self._cells[first + _WRITTEN] - self._cells[first + _READ]

    def write(self, pipe: int, count: int, due_ns: int) -> None:
        """Record that a thread wrote `count` bytes, and that this was due at `due_ns`."""
        cells, first = self._cells, pipe * self._width
        cells[first + _WRITTEN] += count
        if cells[first + _NEXT] - cells[first + _FIRST] < _ENTRIES:
            cells[first + _NEXT] += 1
        entry = self._entry(pipe, cells[first + _NEXT] - 1)
        cells[entry], cells[entry + 1] = cells[first + _WRITTEN], due_ns

    def read(self, pipe: int, count: int, due_ns: int) -> int:
        """Record that a thread read `count` bytes. Return when the read was due: with the last byte, but not before `due_ns`."""
        cells, first = self._cells, pipe * self._width
        cells[first + _READ] += count
        while cells[self._entry(pipe, cells[first + _FIRST])] < cells[first + _READ]:
            cells[first + _FIRST] += 1
        entry = self._entry(pipe, cells[first + _FIRST])
        if cells[entry] == cells[first + _READ]:
            cells[first + _FIRST] += 1
        cells[first + _ROOM] = max(due_ns, cells[entry + 1])
        return cells[first + _ROOM]

    def next_due(self, pipe: int) -> int:
        """Return when the first byte in a pipe, which must not be empty, was due."""
        return self._cells[self._entry(pipe, self._cells[pipe * self._width + _FIRST]) + 1]

    def room_due(self, pipe: int) -> int:
        """Return when the last read of a pipe made room; 0 if there was none."""
        return self._cells[pipe * self._width + _ROOM]

    def _entry(self, pipe: int, index: int) -> int:
        """Return the cell of a write's last byte, before that of its time."""
        return pipe * self._width + _HEAD + 2 * (index % _ENTRIES)


@dataclass
class VirtualReplay:
    """The slots of a replay's threads, and the times of the bytes in its pipes."""

    clock: VirtualClock
    header: Header
    first: int = field(init=False)  # slot of thread 0
    pipes: PipeTimes = field(init=False)

    def __post_init__(self) -> None:
        self.first = self.clock.reserve(len(self.header.threads))
        self.pipes = PipeTimes(len(self.header.pipes))

    def slot(self, thread: int) -> int:
        """Return the slot of a thread of the recording."""
        return self.first + thread

    def key(self, kind: int, index: int) -> int:
        """Return the key of a pipe or channel of this replay, which differs from the keys of other ranks' replays."""
        return kind + (self.first << 36) + index

    def begin(self, thread: int) -> None:
        """Count a thread as running. Call this before it is started."""
        self.clock.begin(self.slot(thread))

    def end(self, thread: int) -> None:
        """End a thread, and wake the threads that wait for its end."""
        self.clock.end(self.slot(thread))

    def end_all(self) -> None:
        """Free the slots, after the replay."""
        self.clock.release(self.first, len(self.header.threads))

    def wait_for_end(self, waiting: int, ended: int, gives_up: Callable[[], bool]) -> None:
        """Let the thread `waiting` wait for the end of the thread `ended`, or until `gives_up` returns True."""
        slot = self.slot(ended)
        self.clock.wait(self.slot(waiting), slot, lambda: self.clock.has_ended(slot), gives_up)
