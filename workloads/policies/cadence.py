"""When evaluation runs and checkpoints are written: after epochs, or after steps of the run."""

from typing import NamedTuple


class Cadence(NamedTuple):
    """First after number `first`, then every `every`; numbers (of epochs, or of steps) count from 1."""

    first: int
    every: int
    also: int = -1  # one more, outside the row

    def due(self, number: int) -> bool:
        """Return whether it is time after `number`."""
        return number == self.also or (number >= self.first and (number - self.first) % self.every == 0)
