"""Batches in an order that is a function of seed and epoch alone: a job can go on at any of them without reading others."""

from collections.abc import Iterator

import msgspec
import numpy as np

from common.checkpoints import Position
from common.numbers.permutation import Permutation
from workloads.state.position import begin, next_epoch, positions_of, steps_left


class CFBatches:
    """A batch_sampler of a torch DataLoader: the indices of this rank's batches, of an epoch, from `position` on.

    `samples` is the number in the data set, `batch_size` that of a rank. Each sample is taken once an epoch, but for those that
    fill no step of all ranks. `with_epoch` yields (epoch, index) instead, for augmentation that is keyed by both. `sliced` gives
    rank s of n the slice of the order from floor(s samples / n) on, as the original's reader does, in place of every n-th sample;
    a job can then go on within an epoch with as many ranks only.
    """

    def __init__(
        self,
        samples: int,
        batch_size: int,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        with_epoch: bool = False,
        sliced: bool = False,
    ) -> None:
        if samples < batch_size * world_size:
            raise ValueError(f"{samples} samples do not fill a batch of {batch_size} on each of {world_size} ranks")
        self.position: Position = begin(seed, 1, samples, batch_size, world_size)
        self._rank, self._with_epoch, self.sliced = rank, with_epoch, sliced

    def order(self) -> Permutation:
        """Return the order of the whole epoch."""
        return Permutation(self.position.samples, self.position.seed, self.position.epoch)

    def indices(self, position: Position) -> list[int]:
        """Return the indices of this rank's batch at `position`, which is of the present epoch."""
        return self.order()(np.array(self._positions(position), np.int64)).tolist()

    def _positions(self, position: Position, step: int = 0) -> range:
        """Return the positions in the order of this rank's batch after `step` others."""
        if not self.sliced:
            return positions_of(position, self._rank, step)
        first = self._rank * position.samples // position.world_size
        first += position.position // position.world_size + step * position.batch_size
        return range(first, first + position.batch_size)

    def advance_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.position = next_epoch(self.position)

    def __len__(self) -> int:
        """Return the batches that the epoch has left."""
        return steps_left(self.position)

    def __iter__(self) -> Iterator[list[int] | list[tuple[int, int]]]:
        """Yield the indices of each batch."""
        order, position = self.order(), self.position  # the loader asks for batches long before the job has come to them
        for step in range(steps_left(position)):
            found = order(np.array(self._positions(position, step), np.int64)).tolist()
            yield [(position.epoch, index) for index in found] if self._with_epoch else found

    def state_dict(self) -> dict[str, int]:
        """Return the position."""
        state: dict[str, int] = msgspec.to_builtins(self.position)
        return state
