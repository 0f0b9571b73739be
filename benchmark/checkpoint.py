"""Checkpoints: files of the recorded write sizes, really synced, really renamed, whole under their final name or absent."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmark.config import CheckpointFile, Config
from benchmark.draws import DrawnTime, Purpose, generator
from benchmark.sleeper import Sleeper
from tracing_tools.trace.errors import IotwinError, UsageError

_RANK = 0
_BUFFER_LIMIT_BYTES = 8 << 20
_MAX_VECTORS = 1024  # IOV_MAX of Linux
_WORTH_SLEEPING_S = 1e-3  # many small writes share one sleep


_MARKER = "iotwin-emulated.txt"
_MARKER_TEXT = "The checkpoints in this folder were written by iotwin emulate: random bytes, no model.\n"


class Written(NamedTuple):
    """One file of one checkpoint, as it was written."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # until it stands under its final name, synced if it was to be


class CheckpointWriter:
    """Writes the files that the workload's checkpoints consist of.

    Made before training: raises UsageError when a file it would write is there and no emulator wrote it, since a twin that was
    derived on the machine of the job names the job's own checkpoints.
    """

    def __init__(self, config: Config) -> None:
        self._folder = Path(config.checkpoint.checkpoint_folder)
        self._files = config.twin.checkpoint.files
        self._claim(range(1, config.train.epochs + 1))
        self._fsync = config.checkpoint.fsync
        self._serialization = DrawnTime(config.twin.checkpoint.serialization_time, config.train.seed, Purpose.SERIALIZATION)
        largest = max(size for file in self._files for size, _ in file.write_sizes)
        # One buffer serves all writes, so that memory does not grow with the model; random bytes, which storage cannot compress.
        content = generator(config.train.seed, Purpose.CHECKPOINT_CONTENT, _RANK).bytes(max(1, min(largest, _BUFFER_LIMIT_BYTES)))
        self._buffer = memoryview(content)
        self._sleeper = Sleeper()

    def _claim(self, epochs: range) -> None:
        """Mark the folder as one of emulated checkpoints, if nothing of value can be lost in it."""
        marker = self._folder / _MARKER
        if marker.exists():
            return
        for path in sorted({self._path(file, epoch) for file in self._files for epoch in epochs}):
            if path.exists():
                raise UsageError(f"{path}: exists, and no emulator wrote it; change checkpoint.checkpoint_folder to spare it")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            marker.write_text(_MARKER_TEXT)
        except OSError as error:
            raise IotwinError(f"{marker}: cannot be written: {error.strerror}; change checkpoint.checkpoint_folder") from None

    def _path(self, file: CheckpointFile, epoch: int) -> Path:
        return self._folder / file.name.replace("{epoch}", str(epoch))

    def save(self, epoch: int) -> list[Written]:
        """Write the checkpoint after `epoch`; IotwinError, naming the file, when one cannot be written (the disk is full)."""
        due = [(number, file) for number, file in enumerate(self._files) if file.epochs is None or epoch in file.epochs]
        return [self._save_file(file, epoch, self._serialization.seconds(number, epoch, 0)) for number, file in due]

    def _save_file(self, file: CheckpointFile, epoch: int, serialization_s: float) -> Written:
        final = self._path(file, epoch)
        path = final.with_name(final.name + ".partial") if file.rename else final
        start_ns = time.monotonic_ns()
        try:
            final.parent.mkdir(parents=True, exist_ok=True)
            size_bytes = self._write(path, file, serialization_s)
            if file.rename:
                path.replace(final)
        except OSError as error:
            _remove(path)
            raise IotwinError(
                f"{final}: the checkpoint cannot be written: {error.strerror}; free space or change its folder"
            ) from None
        except BaseException:
            _remove(path)
            raise
        return Written(epoch, final.name, size_bytes, start_ns, time.monotonic_ns() - start_ns)

    def _write(self, path: Path, file: CheckpointFile, serialization_s: float) -> int:
        total_bytes = sum(size * count for size, count in file.write_sizes) or 1
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o666)
        written_bytes, owed_s = 0, 0.0
        try:
            for size in _sizes(file):
                self._write_once(descriptor, size)
                written_bytes += size
                owed_s += serialization_s * size / total_bytes
                if owed_s >= _WORTH_SLEEPING_S:
                    self._sleeper.sleep(owed_s)
                    owed_s = 0.0
            self._sleeper.sleep(owed_s)
            if file.fsync if self._fsync is None else self._fsync:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return written_bytes

    def _write_once(self, descriptor: int, size_bytes: int) -> None:
        """Write `size_bytes` by one system call, the buffer repeated; by more where the kernel takes less at a time."""
        left = size_bytes
        while True:
            whole, rest = divmod(left, len(self._buffer))
            vectors = [self._buffer] * min(whole, _MAX_VECTORS) + ([self._buffer[:rest]] if rest and whole < _MAX_VECTORS else [])
            left -= os.writev(descriptor, vectors) if len(vectors) > 1 else os.write(descriptor, vectors[0] if vectors else b"")
            if left == 0:
                return


def _sizes(file: CheckpointFile) -> Iterator[int]:
    for size, count in file.write_sizes:
        for _ in range(count):
            yield size


def _remove(path: Path) -> None:
    """Take away what is not a whole checkpoint; where that fails too, the first failure is the one to report."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
