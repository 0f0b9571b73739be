"""Measures the speed of durable writes to a directory: bytes per second until fsync returns, and the time of one fsync."""

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import cache_folder, file_system_of, make_folder, write_fully, write_json
from iotwin.common.untrusted_files import read_foreign_struct

_BLOCK_BYTES = 1 << 20
_SMALL_BYTES = 4096
_SYNCS = 5


@dataclass(frozen=True)
class WriteProbe:
    """The measured write speed of the device that holds a directory. `cached`: True if an earlier call measured it."""

    directory: str
    file_system: str
    device: str
    write_bytes_per_s: float  # until fsync(2) has returned
    fsync_s: float  # median time of 5 fsync calls, each after a write of one page
    size_bytes: int
    cached: bool


def probe(directory: Path, size_bytes: int, fresh: bool = False, clock: Callable[[], float] = time.monotonic) -> WriteProbe:
    """Write and sync an unnamed file of `size_bytes` in `directory`, or return the cached result for the directory's device.

    `fresh` measures again. Raises UsageError if the directory does not exist, IotwinError if it is unwritable or full.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is no directory; name the one that checkpoints go to")
    device = directory.stat().st_dev
    file_system, number = file_system_of(directory), f"{os.major(device)}:{os.minor(device)}"
    kept = cache_folder() / "write-probe" / f"{number.replace(':', '-')}-{file_system.replace('/', '-')}-{size_bytes}.json"
    speed = None if fresh else _kept(kept)
    if speed is None:
        try:
            measured = _measure(directory, size_bytes, clock)
        except OSError as error:
            raise IotwinError(f"{directory} cannot be written to: {error.strerror}; free space, or name another") from None
        _keep(kept, measured)
        return WriteProbe(str(directory), file_system, number, *measured, size_bytes, False)
    return WriteProbe(str(directory), file_system, number, *speed, size_bytes, True)


def _measure(directory: Path, size_bytes: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Write an unnamed file. Return its bytes per second, fsync included, and the median seconds of further fsyncs."""
    block = os.urandom(_BLOCK_BYTES)  # random bytes, which no file system can compress
    with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
        begin = clock()
        for offset in range(0, size_bytes, _BLOCK_BYTES):
            write_fully(file.fileno(), block[: size_bytes - offset])
        os.fsync(file.fileno())
        seconds = clock() - begin
        syncs = []
        for _ in range(_SYNCS):
            write_fully(file.fileno(), block[:_SMALL_BYTES])
            begin = clock()
            os.fsync(file.fileno())
            syncs.append(clock() - begin)
    return size_bytes / max(seconds, 1e-9), statistics.median(syncs)


def _kept(path: Path) -> tuple[float, float] | None:
    try:
        found = read_foreign_struct(path, dict[str, float])
        return found["write_bytes_per_s"], found["fsync_s"]
    except (OSError, IotwinError, KeyError):
        return None


def _keep(path: Path, measured: tuple[float, float]) -> None:
    try:
        make_folder(path.parent)
        write_json(path, dict(zip(("write_bytes_per_s", "fsync_s"), measured, strict=True)))
    except (OSError, IotwinError):
        pass  # if the result cannot be cached, the next call measures again
