"""A batch sampler whose order depends only on seed and epoch, so that a job can resume at any batch without reading others."""

from collections.abc import Iterator

import msgspec
import numpy as np

from iotwin.common.checkpoints import Position
from iotwin.common.numbers.permutation import Permutation
from iotwin.workloads.state.position import begin, next_epoch, positions_of, steps_left


class ResumableBatches:
    """A batch_sampler for torch's DataLoader: yields the sample indices of this rank's batches from `position` to the epoch's
    end.

    * `samples` is the size of the data set, `batch_size` the number of samples per step and rank.
    * An epoch takes each sample once in a random order, except a remainder that is too small for a step of all ranks.
    * Rank r of n takes every n-th sample of this order. With `sliced`, it takes consecutive samples of the order, beginning with
      number floor(r * samples / n), as CheckFreq's reader does. With `sliced`, only the same number of ranks can resume an epoch.
    * With `with_epoch` it yields (epoch, index) instead of an index, as a key for augmentation.
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
        """Return the order in which all ranks together take the samples of the epoch."""
        return Permutation(self.position.samples, self.position.seed, self.position.epoch)

    def indices(self, position: Position) -> list[int]:
        """Return the sample indices of this rank's batch at `position`, which must be in the current epoch."""
        return self.order()(np.array(self._positions(position), np.int64)).tolist()

    def _positions(self, position: Position, step: int = 0) -> range:
        """Return the positions in the epoch's order of the samples of this rank's batch `step` batches after `position`."""
        if not self.sliced:
            return positions_of(position, self._rank, step)
        first = self._rank * position.samples // position.world_size
        first += position.position // position.world_size + step * position.batch_size
        return range(first, first + position.batch_size)

    def advance_epoch(self) -> None:
        """Go to the start of the next epoch."""
        self.position = next_epoch(self.position)

    def __len__(self) -> int:
        """Return the number of batches left in the epoch."""
        return steps_left(self.position)

    def __iter__(self) -> Iterator[list[int] | list[tuple[int, int]]]:
        order, position = self.order(), self.position  # the job changes `self.position` meanwhile, as the loader reads ahead
        for step in range(steps_left(position)):
            found = order(np.array(self._positions(position, step), np.int64)).tolist()
            yield [(position.epoch, index) for index in found] if self._with_epoch else found

    def state_dict(self) -> dict[str, int]:
        """Return the fields of `position` by name."""
        state: dict[str, int] = msgspec.to_builtins(self.position)
        return state
