"""The slots of a recording's threads in a virtual clock, and the keys of what they wait for."""

import mmap
from collections.abc import Callable
from dataclasses import dataclass, field

from iotwin.benchmark.emulator.clock import VirtualClock
from iotwin.workload_yaml.recording import Header

# Kinds of keys: bytes in a pipe, room in a pipe, a post on a channel. The key of the wait for a thread's end is its slot.
PIPE, ROOM, POST = ((kind << 56) for kind in (1, 2, 3))


@dataclass
class VirtualReplay:
    """The slots of a replay's threads, and the bytes in its pipes, in memory that forked processes share."""

    clock: VirtualClock
    header: Header
    first: int = field(init=False)  # slot of thread 0
    held: memoryview = field(init=False)  # bytes in each pipe

    def __post_init__(self) -> None:
        self.first = self.clock.reserve(len(self.header.threads))
        self.held = memoryview(mmap.mmap(-1, max(len(self.header.pipes), 1) * 8)).cast("q")

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
