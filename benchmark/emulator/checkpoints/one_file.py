"""Writes, syncs and renames one checkpoint file. The file appears under its final name only when it is whole."""

import mmap
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.common.beneath import folder_of, normal
from iotwin.common.direct_io import DirectWriter, write_once
from iotwin.common.errors import IotwinError
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import TwinCheckpoint

LARGEST_BYTES = 8 << 20  # of the buffer
_PIECE_BYTES = 1 << 16
_MAX_VECTORS = 1024  # IOV_MAX of Linux
_WORTH_SLEEPING_S = 1e-4  # sleeps much shorter than this take longer than they should


class CheckpointContent:
    """The content of the checkpoints of `rank`. All writes use one buffer, so that memory does not grow with the model.

    The bytes are random, so that storage cannot compress them, or zeros if `seed` is None.
    """

    def __init__(self, largest_bytes: int, seed: int | None, rank: int) -> None:
        size_bytes = max(1, min(largest_bytes, LARGEST_BYTES))
        # Whole pages, as O_DIRECT requires; private, as the default is shared with processes forked later.
        content = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if seed is not None:
            draws = generator(seed, Purpose.CHECKPOINT_CONTENT, rank)
            # Piece by piece: a second buffer, freed just before the first checkpoint, would have its pages at hand for it.
            for begin in range(0, size_bytes, _PIECE_BYTES):
                content.write(draws.bytes(min(_PIECE_BYTES, size_bytes - begin)))
        self.buffer = memoryview(content)

    def write(self, size_bytes: int, write: Callable[[Sequence[memoryview]], int]) -> None:
        """Write `size_bytes` by one call of `write`, which returns the bytes written. If it writes fewer, call it again."""
        left = size_bytes
        while True:
            whole, rest = divmod(left, len(self.buffer))
            parts = [self.buffer] * min(whole, _MAX_VECTORS) + ([self.buffer[:rest]] if rest and whole < _MAX_VECTORS else [])
            left -= write(parts)
            if left == 0:
                return


# Writes that many bytes into a slot by that many threads, synced or not, until the last argument returns True.
SlotWriter = Callable[[int, int, bool, Callable[[], bool]], None]


class _Target(NamedTuple):
    """The path of a file, relative to the folder with the descriptor if there is a descriptor."""

    folder: int | None
    path: str


class FileWriter:
    """Writes files into `folder` until `abandoned` is True. `fsync`, if not None, overrides each file's own setting."""

    def __init__(
        self,
        folder: Path,
        fsync: bool | None,
        section: TwinCheckpoint,
        content: CheckpointContent,
        write_slot: SlotWriter | None = None,
    ) -> None:
        self._folder, self._fsync = folder, fsync
        self._ahead, self._threads = section.serialization_ahead, section.persist_threads
        self._content, self._write_slot = content, write_slot
        self.abandoned = False
        self._in_turn = threading.Lock()  # for files that every checkpoint writes under the same name, several at once

    def write(self, name: str, file: PlannedFile, serialization_s: float, sleeper: Sleeper) -> None:
        """Write `file` as `name`, and sleep `serialization_s` in addition to the system calls.

        A file with `rename` has a temporary name until it is whole. Raises OSError if a call fails, and IotwinError if
        `abandoned` is set; in both cases the unfinished file is removed.
        """
        if file.slots and self._write_slot is not None:
            sleeper.sleep(serialization_s)
            self._write_slot(file.size_bytes, self._threads, self._is_synced(file), lambda: self.abandoned)
            return
        with self._in_turn if file.pattern == file.name else nullcontext(), self._target(name) as target:
            path = target.path + ".partial" if file.rename else target.path
            try:
                self._write(path, target.folder, file, serialization_s, sleeper)
                if file.rename:
                    os.replace(path, target.path, src_dir_fd=target.folder, dst_dir_fd=target.folder)
            except BaseException:
                _remove(path, target.folder)
                raise

    def _is_synced(self, file: PlannedFile) -> bool:
        return file.fsync if self._fsync is None else self._fsync

    @contextmanager
    def _target(self, name: str) -> Iterator[_Target]:
        """Yield the target of the file `name`. No symbolic link is followed, neither in the file's name nor in its folders."""
        if "/" not in normal(name):  # the folder is the user's own choice: by its path, as the job does
            yield _Target(None, str(self._folder / name))
            return
        with folder_of(self._folder, name, make=True) as (folder, last):
            yield _Target(folder, last)

    def _write(self, path: str, folder: int | None, file: PlannedFile, serialization_s: float, sleeper: Sleeper) -> None:
        total_bytes, fsync = file.size_bytes or 1, self._is_synced(file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        if file.made_first:
            os.close(os.open(path, flags, 0o666, dir_fd=folder))
        descriptor = os.open(path, flags, 0o666, dir_fd=folder)
        write = DirectWriter(descriptor).write if file.direct else partial(write_once, descriptor)
        owed_s = serialization_s * self._ahead
        after_writes_s = serialization_s - owed_s
        try:
            if fsync and file.synced_early:  # as torch.distributed.checkpoint does with what is still in its buffer
                os.fsync(descriptor)
            for size in file.sizes():
                if self.abandoned:
                    raise IotwinError(f"{path}: the checkpoint was given up, as the run ended")
                if owed_s >= _WORTH_SLEEPING_S:
                    sleeper.sleep(owed_s)
                    owed_s = 0.0
                self._content.write(size, write)
                owed_s += after_writes_s * size / total_bytes
            sleeper.sleep(owed_s)
            if fsync and not file.synced_early:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: str, folder: int | None) -> None:
    """Remove an unfinished file. A failure is ignored, because the caller reports the earlier failure."""
    with suppress(OSError):
        os.unlink(path, dir_fd=folder)
