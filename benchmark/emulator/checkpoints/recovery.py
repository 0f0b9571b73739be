"""Existing checkpoints: which are whole, which remain, and how jobs with iotwin.common.checkpoints inspect and read them."""

import os
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.checkpoint_folders import folder_name
from iotwin.benchmark.emulator.checkpoints.one_file import PlannedFile
from iotwin.benchmark.emulator.checkpoints.own_files import existing_files
from iotwin.benchmark.emulator.checkpoints.plan import CheckpointPlan, Number, checkpoint_number
from iotwin.benchmark.emulator.readers.access import BufferedToEnd
from iotwin.common.paths_below import folder_of
from iotwin.workload_yaml import TwinCheckpoint

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
    for file in sorted(files, key=lambda file: file.looked_at != "read"):  # files that are read come first: they list the others
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
    """Return the files of the training state: those in subfolders, without those that `inspect` reads."""
    return [file for file in files if file.looked_at != "read" and folder_name(file.name) is not None]


def read_whole(folder: Path, file: PlannedFile, epoch: int, most_bytes: int) -> Written:
    """Read `file` of the checkpoint after `epoch`, at most `most_bytes` per call, and return its record."""
    start_ns = waits.now_ns()
    with BufferedToEnd(str(folder / file.name)) as source:
        for offset in range(0, file.size_bytes, most_bytes):
            source.read(offset, min(most_bytes, file.size_bytes - offset))
    return Written(epoch, file.name, file.size_bytes, start_ns, waits.now_ns() - start_ns)


@dataclass(frozen=True)
class CheckpointsOnDisk:
    """The checkpoints of `plan` that exist in `folder`, whole or not. A number is the (epoch, step) of a checkpoint."""

    folder: Path
    plan: CheckpointPlan

    def folders(self) -> list[Number]:
        """Return the numbers of the checkpoints whose folders exist, oldest first."""
        return sorted(number for path in self.folder.glob("global_epoch*") if (number := checkpoint_number(path.name)))

    def numbers(self) -> list[Number]:
        """Return the numbers of all checkpoints, oldest first."""
        if not self.plan.config.twin.checkpoint.files:
            return self.folders()
        names = [file.name for file in self.plan.written_by_all()]
        return sorted({number for _, number in existing_files(self.folder, names)})

    def is_whole(self, number: Number) -> bool:
        """Return True if every file of every rank exists with its full size."""
        files = self.plan.written_by_all(number)
        return bool(files) and all(size_bytes(self.folder / file.name) == file.size_bytes for file in files)


@dataclass
class CheckpointRetention:
    """The checkpoints `saved` so far, in the order in which they were finished, and which of them remain."""

    section: TwinCheckpoint
    saved: list[Number]
    removed: set[str] = field(default_factory=set)  # names of removed files
    epoch_ends: set[Number] = field(default_factory=set)  # checkpoints of ends of epochs, which are never removed

    def staying(self) -> set[Number]:
        """Return the (epoch, step) of the checkpoints that are never removed."""
        every = self.section.keep_every
        return set(self.saved[every - 1 :: every]) if isinstance(every, int) else self.epoch_ends.intersection(self.saved)

    def _most(self, file: PlannedFile) -> float:
        """Return how many of the newest versions of `file` remain; infinity if all do."""
        return (self.section.keep if file.keep is None else file.keep) or float("inf")

    def files(self, planned: Callable[[Number], Sequence[PlannedFile]]) -> Iterator[tuple[list[PlannedFile], list[str]]]:
        """Yield (files that remain, names of files to remove) of each checkpoint, newest first.

        `planned` returns the files of a checkpoint. Files of the same pattern are counted together, since kinds
        of files may have separate cadences. A name that a newer checkpoint has, too, is not removed.
        """
        always, newer, names = self.staying(), Counter[str](), set[str]()
        for number in reversed(self.saved):
            files = planned(number)
            newer.update(file.pattern for file in files)
            stay = [file for file in files if number in always or newer[file.pattern] <= self._most(file)]
            names.update(file.name for file in stay)
            yield stay, [file.name for file in files if file.name not in names and file.name not in self.removed]
