"""Write checkpoints into slots of a mapped file. Each overwrites the oldest slot; a page before the slots names the newest.

There is one slot more than concurrent checkpoints, so that one checkpoint is always whole (PCcheck: Strati et al., ASPLOS 2025).
"""

import ctypes
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from iotwin.benchmark.emulator.checkpoints.one_file import CheckpointContent, PlannedFile
from iotwin.benchmark.emulator.checkpoints.own_files import OwnFiles
from iotwin.benchmark.emulator.threads import TaskThreads
from iotwin.common.errors import IotwinError

_MS_SYNC = 4
_NEWEST = struct.Struct("<QQQ")  # number of checkpoints, offset and size of the newest one
_libc = ctypes.CDLL(None, use_errno=True)  # calls by ctypes release Python's lock, unlike mmap.flush
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = ctypes.c_void_p
_libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Slots:
    """`count` slots of at least `size_bytes` each, in the new file `path`. Raises OSError if the disk is full."""

    def __init__(self, path: Path, size_bytes: int, count: int, content: CheckpointContent) -> None:
        self._content, self._count = content, count
        self._slot_bytes = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        total_bytes = mmap.PAGESIZE + count * self._slot_bytes
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        try:
            os.posix_fallocate(descriptor, 0, total_bytes)  # fails on a full disk; a write to the map would kill the process
            self._map = mmap.mmap(descriptor, total_bytes)
        except BaseException:
            path.unlink()
            raise
        finally:
            os.close(descriptor)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._begun = self._newest = 0
        self._lock = threading.Lock()

    def write(self, size_bytes: int, threads: int, sync: bool, abandoned: Callable[[], bool]) -> None:
        """Copy `size_bytes` into the next slot by `threads` threads, and then record it as the newest.

        With `sync`, each thread syncs its part. Raises OSError if that fails, and IotwinError once `abandoned` returns True.
        """
        with self._lock:
            self._begun += 1
            number = self._begun
        begin = mmap.PAGESIZE + number % self._count * self._slot_bytes
        each = -(-size_bytes // (threads * mmap.PAGESIZE)) * mmap.PAGESIZE or mmap.PAGESIZE

        def copy(at: int) -> None:
            self._copy(begin + at, min(each, size_bytes - at), sync, abandoned)

        if threads == 1:
            copy(0)
        else:
            TaskThreads(threads, "slots").map(copy, range(0, size_bytes, each))
        with self._lock:
            if number > self._newest:
                self._newest = number
                _NEWEST.pack_into(self._map, 0, number, begin, size_bytes)
        if sync:
            self._sync(0, _NEWEST.size)

    def _copy(self, at: int, size_bytes: int, sync: bool, abandoned: Callable[[], bool]) -> None:
        buffer = self._content.buffer
        source = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        for done in range(0, size_bytes, len(buffer)):
            if abandoned():
                raise IotwinError("a slot of the checkpoints was given up, as the run ended")
            _libc.memcpy(self._address + at + done, source, min(len(buffer), size_bytes - done))
        if sync:
            self._sync(at, size_bytes)

    def _sync(self, at: int, size_bytes: int) -> None:
        if _libc.msync(self._address + at, size_bytes, _MS_SYNC):
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))


def make_slots(
    folder: Path, in_flight: int, files: Iterable[PlannedFile], own: OwnFiles, content: CheckpointContent
) -> Slots | None:
    """Create the slots for the file among `files` that has slots, and add it to `own`. Return None if none has.

    `in_flight`: number of concurrent checkpoints. Raises IotwinError if the slots cannot be created.
    """
    for file in files:
        if file.slots:
            own.add(file.name)
            try:
                return Slots(folder / file.name, file.size_bytes, in_flight + 1, content)
            except OSError as error:
                raise IotwinError(
                    f"{folder / file.name}: slots cannot be made: {error.strerror}; free space or change its folder"
                ) from None
    return None
