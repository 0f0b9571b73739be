"""One file of a checkpoint: its planned writes, and how it is written, synced and renamed when it is whole."""

import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from iotwin.benchmark.emulator import waits
from iotwin.common.direct_io import DirectWriter, write_once
from iotwin.common.errors import IotwinError
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.common.paths_below import folder_of
from iotwin.workload_yaml import CheckpointFile, TwinCheckpoint

LARGEST_BYTES = 8 << 20  # largest size of the buffer that checkpoints are written from, and of one read
_PIECE_BYTES = 1 << 16
_MAX_VECTORS = 1024  # IOV_MAX of Linux
_WORTH_SLEEPING_S = 1e-4  # shorter sleeps are added to later ones, since they would end too late


class PlannedFile(CheckpointFile):
    """One file of one checkpoint: the recorded properties of the YAML, and properties of the emulator's own formats."""

    commits: bool = False  # True if the file is written only after all other files of the checkpoint
    synced_early: bool = False  # True if fsync is called before the writes
    slots: bool = False  # True if the file is mapped, and overwritten slot by slot
    pattern: str = ""  # its name with '{epoch}' and '{step}' in place of the numbers

    @property
    def size_bytes(self) -> int:
        """Return the size of the file in bytes."""
        return sum(size * count for size, count in self.write_sizes)

    def sizes(self) -> Iterator[int]:
        """Yield the size of each write in bytes."""
        for size, count in self.write_sizes:
            for _ in range(count):
                yield size


class CheckpointContent:
    """The content of the checkpoints of `rank`. All writes use one buffer, so that memory does not grow with the model.

    The bytes are random, so that storage cannot compress them, or zeros if `seed` is None.
    """

    def __init__(self, largest_bytes: int, seed: int | None, rank: int) -> None:
        size_bytes = max(1, min(largest_bytes, LARGEST_BYTES))
        # mmap aligns to pages, as O_DIRECT requires. Private memory, since the default is shared with forked processes.
        content = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if seed is not None:
            draws = generator(seed, Purpose.CHECKPOINT_CONTENT, rank)
            # Fill it in small pieces: if a second buffer of this size were freed, the first checkpoint would get warm pages.
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


SlotWriter = Callable[[int, int, bool, Callable[[], bool]], None]  # see Slots.write


@dataclass
class FileWriter:
    """Writes files into `folder` until `abandoned` is True. `fsync`, if not None, overrides each file's own setting."""

    folder: Path
    fsync: bool | None
    section: TwinCheckpoint
    content: CheckpointContent
    write_slot: SlotWriter | None = None
    abandoned: bool = False
    _in_turn: waits.Turn = field(default_factory=waits.Turn)  # concurrent checkpoints may write files of the same name

    def write(self, name: str, file: PlannedFile, serialization_s: float, sleeper: Sleeper) -> None:
        """Write `file` as `name`, and sleep `serialization_s` in addition to the system calls.

        A file with `rename` has a temporary name until it is whole. Raises OSError if a call fails, and IotwinError if
        `abandoned` is set; in both cases the unfinished file is removed.
        """
        if file.slots and self.write_slot is not None:
            sleeper.sleep(serialization_s)
            self.write_slot(file.size_bytes, self.section.persist_threads, self._is_synced(file), lambda: self.abandoned)
            return
        with self._in_turn if file.pattern == file.name else nullcontext(), self._located(name) as (folder, final):
            path = final + ".partial" if file.rename else final
            try:
                self._write(path, folder, file, serialization_s, sleeper)
                if file.rename:
                    os.replace(path, final, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                with suppress(OSError):  # the failure that is raised is the earlier one
                    os.unlink(path, dir_fd=folder)
                raise

    def _is_synced(self, file: PlannedFile) -> bool:
        return file.fsync if self.fsync is None else self.fsync

    @contextmanager
    def _located(self, name: str) -> Iterator[tuple[int | None, str]]:
        """Yield (descriptor of a folder or None, path of the file `name` relative to that folder). No links are followed.

        A file directly in the checkpoint folder has an absolute path, as in the job: the user chose that folder.
        """
        if len(PurePosixPath(name).parts) == 1:
            yield None, str(self.folder / name)
            return
        with folder_of(self.folder, name, make=True) as found:
            yield found

    def _write(self, path: str, folder: int | None, file: PlannedFile, serialization_s: float, sleeper: Sleeper) -> None:
        total_bytes, fsync = file.size_bytes or 1, self._is_synced(file)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(path, flags, 0o666, dir_fd=folder)
        write = DirectWriter(descriptor).write if file.direct else partial(write_once, descriptor)
        owed_s = serialization_s * self.section.serialization_ahead
        after_writes_s = serialization_s - owed_s
        try:
            if fsync and file.synced_early:  # torch.distributed.checkpoint syncs while the bytes are still in its buffer
                os.fsync(descriptor)
            for size in file.sizes():
                if self.abandoned:
                    raise IotwinError(f"{path}: the checkpoint was given up, as the run ended")
                if owed_s >= _WORTH_SLEEPING_S:
                    sleeper.sleep(owed_s)
                    owed_s = 0.0
                self.content.write(size, write)
                owed_s += after_writes_s * size / total_bytes
            sleeper.sleep(owed_s)
            if fsync and not file.synced_early:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
