"""Which of a run's checkpoints stay once a newer one is whole."""

from benchmark.config import TwinCheckpoint

Number = tuple[int, int]  # epoch and step that a checkpoint came after


class Retention:
    """The checkpoints that are `saved`, in the order in which they were finished, and which of them stay."""

    def __init__(self, section: TwinCheckpoint, saved: list[Number]) -> None:
        self.saved = saved
        self._newest, self._every = section.keep or 0, section.keep_every
        self._epoch_ends: set[Number] = set()  # those that stay

    def keep_epoch_end(self, number: Number) -> None:
        """Have the checkpoint of an epoch's end stay."""
        self._epoch_ends.add(number)

    def staying(self) -> set[Number]:
        """Return those that stay however old they are."""
        every = set(self.saved[self._every - 1 :: self._every]) if self._every else set()
        return every | self._epoch_ends.intersection(self.saved)

    def kept(self) -> set[Number]:
        """Return those that stay: the newest, and those that always do."""
        return self.staying().union(self.saved[-self._newest :])

    def older(self) -> list[Number]:
        """Return those before the newest, oldest first."""
        return self.saved[: -self._newest]
