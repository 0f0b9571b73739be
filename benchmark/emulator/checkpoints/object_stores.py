"""Write and read checkpoints in object stores and other file systems of fsspec, with an object for each file."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import BinaryIO

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.one_file import LARGEST_BYTES, CheckpointContent, PlannedFile
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan, Number, checkpoint_number, rank_read
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.benchmark.emulator.readers.object_stores import remote_opener
from iotwin.common.errors import IotwinError, in_one_line
from iotwin.common.units import counted
from iotwin.workload_yaml import Config


class RemoteCheckpoints:
    """Writes the checkpoints of `rank` below the URL `checkpoint.checkpoint_folder`, and reads the newest one back.

    An object appears whole or not at all. Nothing is renamed, synced or removed.
    """

    def __init__(self, config: Config, rank: Rank) -> None:
        self._rank, self._plan = rank, CheckpointPlan(config, rank.count)
        self._rank_read = rank_read(config.checkpoint, rank)
        self._url = config.checkpoint.checkpoint_folder.rstrip("/")
        self._opener = remote_opener(config.storage, self._url.partition("://")[0], config.reader.transfer_size)
        seed = config.train.seed if config.checkpoint.randomize_tensor else None
        self._content = CheckpointContent(LARGEST_BYTES, seed, rank.index)
        self._saved: Number | None = None  # (epoch, step) of the last checkpoint

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`, and return its files. Raises IotwinError, which names the object."""
        written = [self._write(file, epoch) for file in self._plan.written(self._rank.index, (epoch, step))]
        self._saved = epoch, step
        return written

    def finish(self) -> list[Written]:
        """Return an empty list, since `save` has already written and returned all files."""
        return []

    def load(self) -> list[Written]:
        """Read this rank's files of the last checkpoint that it saved, or of the newest whole one, and return them."""
        number = self._saved or self._newest()
        if number is None:
            raise IotwinError(
                f"{self._url}: holds no whole checkpoint of {counted(self._rank.count, 'rank')}; "
                "write one first, or correct the URL"
            )
        return [self._read(file, number[0]) for file in self._plan.read(self._rank_read, number)]

    def _newest(self) -> Number | None:
        """Return (epoch, step) of the newest checkpoint all of whose objects for this rank exist; None if there is none."""
        files = self._opener.file_system()
        with self._one_line(self._url):
            names = files.ls(self._url, detail=False) if files.exists(self._url) else []
        numbers = {number for name in names if (number := checkpoint_number(name.rstrip("/").rpartition("/")[2]))}
        return next((number for number in sorted(numbers, reverse=True) if self._is_whole(number)), None)

    def _is_whole(self, number: Number) -> bool:
        with suppress(IotwinError):  # an object is missing
            return all(
                self._opener(f"{self._url}/{file.name}").size_bytes == file.size_bytes
                for file in self._plan.read(self._rank_read, number)
            )
        return False

    def _write(self, file: PlannedFile, epoch: int) -> Written:
        path, files, start_ns = f"{self._url}/{file.name}", self._opener.file_system(), waits.now_ns()
        with self._one_line(path), files.open(path, "wb") as target:
            for size_bytes in file.sizes():
                self._content.write(size_bytes, partial(_write_all, target))
        return Written(epoch, file.name, file.size_bytes, start_ns, waits.now_ns() - start_ns)

    def _read(self, file: PlannedFile, epoch: int) -> Written:
        start_ns = waits.now_ns()
        with self._opener(f"{self._url}/{file.name}") as source:
            for offset in range(0, file.size_bytes, LARGEST_BYTES):
                source.read(offset, min(LARGEST_BYTES, file.size_bytes - offset))
        return Written(epoch, file.name, file.size_bytes, start_ns, waits.now_ns() - start_ns)

    def _one_line(self, path: str) -> AbstractContextManager[None]:
        return in_one_line(f"{path}: the checkpoint cannot be written", "check the URL, storage.storage_options and the network")


def _write_all(target: BinaryIO, parts: Sequence[memoryview]) -> int:
    return sum(target.write(part) for part in parts)
