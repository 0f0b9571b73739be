"""Read checkpoints back, and inspect the existing ones as jobs with iotwin.common.checkpoints do."""

import os
import stat
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.folders import folder_name
from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.benchmark.emulator.readers.listed import BufferedToEnd
from iotwin.common.beneath import folder_of

CHECKED_BYTES = 1 << 20  # size of a read whose bytes the job checksums


def size_bytes(path: Path) -> int | None:
    """Return the size of the file `path` in bytes; None if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return None


def stand_in(folder: Path, name: str, size_bytes: int) -> None:
    """Create the file `name` in the checkpoint folder as a sparse file of `size_bytes`. Raises OSError on failure.

    A non-empty file of that name remains unchanged. An empty one may be one that another rank has just created.
    """
    with folder_of(folder, name, make=True) as (parent, last):
        with suppress(FileExistsError):
            os.mknod(last, stat.S_IFREG | 0o644, dir_fd=parent)  # not open(2), which a trace would attribute to the job
        if not (folder / name).stat().st_size:
            os.truncate(folder / name, size_bytes)


def inspect(folder: Path, files: Iterable[PlannedFile]) -> None:
    """Open or read the files of a checkpoint as the job does at each later checkpoint.

    Raises IotwinError, which names the file, if a file does not exist.
    """
    for file in sorted(files, key=lambda file: file.looked_at != "read"):  # files that are read list the others
        if file.looked_at is not None:
            with BufferedToEnd(str(folder / file.name)) as source:
                if file.looked_at == "read":
                    source.read(0, source.size_bytes)
                    source.read(source.size_bytes, 0)


def read_back(path: Path, reads: Sequence[tuple[int, int]]) -> None:
    """Make the `reads` (offset, bytes) of the file `path`, which was just written. A read at offset 0 opens the file again."""
    begins = [number for number, (offset, _) in enumerate(reads) if offset == 0 or number == 0]
    for begin, end in pairwise([*begins, len(reads)]):
        with BufferedToEnd(str(path)) as source:
            for offset, size_bytes in reads[begin:end]:
                source.read(offset, size_bytes)


def of_state(files: Iterable[PlannedFile]) -> list[PlannedFile]:
    """Return those of `files` that are in folders and that `inspect` does not read."""
    return [file for file in files if file.looked_at != "read" and folder_name(file.name) is not None]


def read_whole(folder: Path, file: PlannedFile, epoch: int, most_bytes: int) -> Written:
    """Read `file` of the checkpoint after `epoch`, at most `most_bytes` per call, and return its record."""
    start_ns = time.monotonic_ns()
    with BufferedToEnd(str(folder / file.name)) as source:
        for offset in range(0, file.size_bytes, most_bytes):
            source.read(offset, min(most_bytes, file.size_bytes - offset))
    return Written(epoch, file.name, file.size_bytes, start_ns, time.monotonic_ns() - start_ns)
