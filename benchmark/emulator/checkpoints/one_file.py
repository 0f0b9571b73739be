"""One file of a checkpoint: really written, synced and renamed, whole under its final name or absent."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmark.config import Config
from benchmark.emulator.checkpoints.content import Content
from benchmark.emulator.checkpoints.planned import PlannedFile
from benchmark.emulator.checkpoints.slots import Slots
from common.beneath import folder_of, normal
from common.direct_io import DirectWriter, write_once
from common.errors import IotwinError
from common.numbers.sleeper import Sleeper

_WORTH_SLEEPING_S = 1e-4  # sleeps much shorter than this take longer than they should


class _Target(NamedTuple):
    """Where a file is: its path, relative to the folder of the descriptor if there is one."""

    folder: int | None
    path: str


class FileWriter:
    """Writes files into the checkpoint folder of `config`; once `abandoned` it writes no more."""

    def __init__(self, config: Config, content: Content, slots: Slots | None) -> None:
        self._folder, self._fsync = Path(config.checkpoint.checkpoint_folder), config.checkpoint.fsync
        self._ahead = config.twin.checkpoint.serialization_ahead
        self._content, self._slots, self._threads = content, slots, config.twin.checkpoint.persist_threads
        self.abandoned = False
        self._in_turn = threading.Lock()  # for files that every checkpoint writes under the same name, several at once

    def write(self, name: str, file: PlannedFile, serialization_s: float, sleeper: Sleeper) -> None:
        """Write `file` as `name`, in that many seconds beside its calls; OSError when that fails, IotwinError once abandoned.

        It is under a temporary name first if it is renamed. Nothing unfinished is left.
        """
        if file.slots and self._slots is not None:
            sleeper.sleep(serialization_s)
            self._slots.write(file.size_bytes, self._threads, self._is_synced(file), lambda: self.abandoned)
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
        """Yield where the file `name` is written: not by a link, neither its own nor one of the folders that the name has."""
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
    """Take away what is not a whole checkpoint; where that fails too, the first failure is the one to report."""
    with suppress(OSError):
        os.unlink(path, dir_fd=folder)
