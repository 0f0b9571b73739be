"""After which epochs evaluation runs and checkpoints are written."""

from typing import NamedTuple


class EpochCadence(NamedTuple):
    """First after epoch `first`, then every `every` epochs; epochs count from 1."""

    first: int
    every: int

    def due(self, epoch: int) -> bool:
        """Return whether it is time after `epoch`."""
        return epoch >= self.first and (epoch - self.first) % self.every == 0
