"""Decide which older checkpoints remain when a newer one is whole."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.workload_yaml import TwinCheckpoint

Number = tuple[int, int]  # (epoch, step) after which a checkpoint was written


class CheckpointRetention:
    """The checkpoints `saved` so far, in the order in which they were finished, and which of them remain."""

    def __init__(self, section: TwinCheckpoint, saved: list[Number]) -> None:
        self.saved = saved
        self.removed: set[str] = set()  # names of removed files
        self._newest, self._every = section.keep, section.keep_every
        self._epoch_ends: set[Number] = set()  # checkpoints of ends of epochs that remain

    def keep_epoch_end(self, number: Number) -> None:
        """Never remove the checkpoint `number`, of the end of an epoch."""
        self._epoch_ends.add(number)

    def staying(self) -> set[Number]:
        """Return the checkpoints that remain however old they are."""
        every = set(self.saved[self._every - 1 :: self._every]) if self._every else set()
        return every | self._epoch_ends.intersection(self.saved)

    def _most(self, file: PlannedFile) -> float:
        """Return how many newest versions of `file` remain."""
        return (self._newest if file.keep is None else file.keep) or float("inf")

    def files(self, planned: Callable[[int, int], Sequence[PlannedFile]]) -> Iterator[tuple[list[PlannedFile], list[str]]]:
        """Yield (files that remain, names of files to remove) of each checkpoint, newest first.

        `planned` returns the files of a checkpoint by epoch and step. Files of the same pattern are counted together, since kinds
        of files may have separate cadences. A name that a newer checkpoint has, too, is not removed.
        """
        always, newer, names = self.staying(), Counter[str](), set[str]()
        for number in reversed(self.saved):
            files = planned(*number)
            newer.update(file.pattern for file in files)
            stay = [file for file in files if number in always or newer[file.pattern] <= self._most(file)]
            names.update(file.name for file in stay)
            yield stay, [file.name for file in files if file.name not in names and file.name not in self.removed]
