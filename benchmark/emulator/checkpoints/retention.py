"""Which of a run's checkpoints stay once a newer one is whole."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.workload_yaml import TwinCheckpoint

Number = tuple[int, int]  # epoch and step that a checkpoint came after


class CheckpointRetention:
    """The checkpoints that are `saved`, in the order in which they were finished, and which of them stay."""

    def __init__(self, section: TwinCheckpoint, saved: list[Number]) -> None:
        self.saved = saved
        self.removed: set[str] = set()  # names of files that have left
        self._newest, self._every = section.keep, section.keep_every
        self._epoch_ends: set[Number] = set()  # those that stay

    def keep_epoch_end(self, number: Number) -> None:
        """Have the checkpoint of an epoch's end stay."""
        self._epoch_ends.add(number)

    def staying(self) -> set[Number]:
        """Return those that stay however old they are."""
        every = set(self.saved[self._every - 1 :: self._every]) if self._every else set()
        return every | self._epoch_ends.intersection(self.saved)

    def _most(self, file: PlannedFile) -> float:
        """How many of a file stay."""
        return (self._newest if file.keep is None else file.keep) or float("inf")

    def files(self, planned: Callable[[int, int], Sequence[PlannedFile]]) -> Iterator[tuple[list[PlannedFile], list[str]]]:
        """Yield of each checkpoint, newest first, those of its `planned` files that stay, and the names of those that do not.

        Files of one pattern count together, as kinds of checkpoints may have separate cadences. A name that another
        checkpoint has as well stays.
        """
        always, newer, names = self.staying(), Counter[str](), set[str]()
        for number in reversed(self.saved):
            files = planned(*number)
            newer.update(file.pattern for file in files)
            stay = [file for file in files if number in always or newer[file.pattern] <= self._most(file)]
            names.update(file.name for file in stay)
            yield stay, [file.name for file in files if file.name not in names and file.name not in self.removed]
