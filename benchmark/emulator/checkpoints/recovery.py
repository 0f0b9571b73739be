"""Reading checkpoints back, and looking which are there, as the jobs' store (common.checkpoints) does."""

import time
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from benchmark.config import Config
from benchmark.config.stand_ins import Look, stand_ins
from benchmark.emulator.checkpoints.background import Written
from benchmark.emulator.checkpoints.folders import folder_name
from benchmark.emulator.checkpoints.plan import PlannedFile
from benchmark.emulator.readers.listed import ToItsEnd

CHECKED_BYTES = 1 << 20  # read at a time where a checksum is taken of them


def look_at_all(config: Config, own: Sequence[Sequence[tuple[str, Look | None]]]) -> None:
    """Look at a run's `own` checkpoints, newest first, and then at what stands in for those that were there before it.

    Each by its files: the name, and what is done to it. IotwinError, naming the file, when one is not there.
    """
    for files in own:
        _look_at(Path(config.checkpoint.checkpoint_folder), files)
    before, keep = stand_ins(config), config.twin.checkpoint.keep
    left = len(before) if keep is None else max(keep - len(own), 0)
    for files in before[::-1][:left]:
        _look_at(Path(config.dataset.data_folder), files)


def _look_at(folder: Path, files: Sequence[tuple[str, Look | None]]) -> None:
    for name, look in sorted(files, key=lambda file: file[1] != "read"):  # what lists the others comes first
        if look is not None:
            with ToItsEnd(str(folder / name)) as source:
                if look == "read":
                    source.read(0, source.size_bytes)
                    source.read(source.size_bytes, 0)


def read_back(path: Path, reads: Sequence[tuple[int, int]]) -> None:
    """Make `reads` (offset, bytes) of a file that has just been written, which is opened again where they begin again."""
    begins = [number for number, (offset, _) in enumerate(reads) if offset == 0 or number == 0]
    for begin, end in pairwise([*begins, len(reads)]):
        with ToItsEnd(str(path)) as source:
            for offset, size_bytes in reads[begin:end]:
                source.read(offset, size_bytes)


def of_state(files: Iterable[PlannedFile]) -> list[PlannedFile]:
    """Return the files in folders that were not read by looking at them."""
    return [file for file in files if file.looked_at != "read" and folder_name(file.name) is not None]


def read_whole(folder: Path, file: PlannedFile, epoch: int, most_bytes: int) -> Written:
    """Read `file` of a checkpoint after `epoch`, `most_bytes` at a time."""
    start_ns = time.monotonic_ns()
    with ToItsEnd(str(folder / file.name)) as source:
        for offset in range(0, file.size_bytes, most_bytes):
            source.read(offset, min(most_bytes, file.size_bytes - offset))
    return Written(epoch, file.name, file.size_bytes, start_ns, time.monotonic_ns() - start_ns)
