"""Reconstruct what strace does not print: the process of each thread, and the file offset and flags of each descriptor."""

import os
import re
from dataclasses import dataclass

from iotwin.trace_store import strace_text as text
from iotwin.trace_store.syscalls import Kind

FORKS = ("clone", "clone3", "fork", "vfork")
FOLLOWED = ("lseek", "dup", "dup2", "dup3", "fcntl", *FORKS, "execve")  # calls that strace must print so that Replay works
_CHANGEABLE = os.O_APPEND | os.O_DIRECT  # the recorded flags that F_SETFL can change
_MAPPED = re.compile(rb", (-?\d+(?:<[^>]*>)?), (0x[0-9a-f]+|\d+)$")


@dataclass(frozen=True)
class DescriptorUse:
    """The descriptor, path, offset and request size of a call; a value is None if the call has none."""

    fd: int
    path: bytes | None
    offset: int | None
    requested: int | None  # bytes


class Replay:
    """The state of processes and descriptors after the calls so far. All calls must be passed to it in order of time."""

    def __init__(self) -> None:
        self._pid_of: dict[int, int] = {}
        self._positions: dict[
            tuple[int, int], list[int]
        ] = {}  # [offset, flags] by (pid, fd); duplicated descriptors share one list

    def process_of(self, call: text.Call) -> int:
        """Return the pid of the thread that made `call`. A thread whose start strace did not print counts as a process."""
        return self._pid_of.setdefault(call.tid, call.tid)

    def fork(self, call: text.Call) -> int | None:
        """Apply `call`, one of FORKS. Return the pid of the new process, None if it is a thread or the call failed."""
        pid, child = self.process_of(call), call.result
        if child <= 0:
            return None
        if b"CLONE_THREAD" in call.arguments:
            self._pid_of[child] = pid
            return None
        self._pid_of[child] = child
        for (owner, fd), position in list(self._positions.items()):
            if owner == pid:
                self._positions[child, fd] = position
        return child

    def move(self, call: text.Call) -> None:
        """Apply `call` if it sets the offset or the flags of a descriptor, or duplicates one; ignore other calls."""
        pid = self.process_of(call)
        if call.result < 0:
            return
        if call.name == "lseek":
            self._position(pid, text.descriptor(call.arguments)[0])[0] = call.result
        elif call.name in ("dup", "dup2", "dup3") or (call.name == "fcntl" and b"F_DUPFD" in call.arguments):
            self._positions[pid, call.result] = self._position(pid, text.descriptor(call.arguments)[0])
        elif call.name == "fcntl" and b"F_SETFL" in call.arguments:
            state = self._position(pid, text.descriptor(call.arguments)[0])
            state[1] = state[1] & ~_CHANGEABLE | text.flags(call.arguments, b"O_") & _CHANGEABLE

    def open(self, call: text.Call) -> None:
        """Apply `call`, which opens a file: its new descriptor has the offset 0."""
        if call.result >= 0:
            self._positions[self.process_of(call), call.result] = [0, text.flags(call.arguments, b"O_")]

    def use(self, call: text.Call, kind: Kind) -> DescriptorUse:
        """Return how `call` uses its descriptor, and advance the descriptor's offset. Bad arguments: ValueError or IndexError."""
        pid, (fd, path) = self.process_of(call), text.descriptor(call.arguments)
        if kind is Kind.CLOSE:
            self._positions.pop((pid, fd), None)
        if kind in (Kind.CLOSE, Kind.DESCRIPTOR):
            return DescriptorUse(fd, path, None, None)
        if kind in (Kind.RANGE, Kind.ALLOCATE, Kind.LENGTH):
            numbers = [int(part, 0) if part.isdigit() else -1 for part in call.arguments.split(b", ")[1:]]
            first = 1 if kind is Kind.ALLOCATE else 0
            return DescriptorUse(fd, path, *((None, numbers[0]) if kind is Kind.LENGTH else (numbers[first], numbers[first + 1])))
        if kind is Kind.POSITIONED:
            requested, offset = text.numbers_at_end(call.arguments, 2)
            return DescriptorUse(fd, path, offset, requested)
        if kind is Kind.POSITIONED_VECTOR:
            offset = text.numbers_at_end(call.arguments, 2 if call.name.endswith("2") else 1)[0]  # preadv2 ends with flags
            return DescriptorUse(fd, path, offset, _vector_bytes(call.arguments))
        position = self._position(pid, fd)
        offset = position[0]
        position[0] += max(call.result, 0)
        requested = text.numbers_at_end(call.arguments, 1)[0] if kind is Kind.READ_WRITE else _vector_bytes(call.arguments)
        return DescriptorUse(fd, path, offset, requested)

    def flags_of(self, call: text.Call) -> int:
        """Return the O_* flags of the descriptor of `call`. Raises ValueError or IndexError for bad arguments."""
        return self._position(self.process_of(call), text.descriptor(call.arguments)[0])[1]

    def _position(self, pid: int, fd: int) -> list[int]:
        return self._positions.setdefault((pid, fd), [0, 0])


def mapped(call: text.Call) -> DescriptorUse | None:
    """Return the descriptor, offset and size of the file range that an mmap `call` maps; None for memory without a file."""
    match = _MAPPED.search(call.arguments)
    if match is None or b"MAP_ANONYMOUS" in call.arguments:
        return None
    return DescriptorUse(*text.descriptor(match[1]), int(match[2], 0), int(call.arguments.split(b", ")[1]))


def command_line(call: text.Call) -> list[bytes]:
    """Return the argument vector of an execve `call`: the strings after the program's path."""
    return text.strings(call.arguments.partition(b", [")[2].partition(b"], ")[0])


def _vector_bytes(arguments: bytes) -> int:
    return sum(int(length) for length in re.findall(rb"iov_len=(\d+)", arguments))
