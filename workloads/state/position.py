"""A job's position in its data, and the samples of each rank's next step, so that an epoch takes each sample once.

All ranks together take the samples of an epoch in one order. A step of `world_size` ranks with `batch_size` samples each takes
the next world_size * batch_size samples. Rank r takes every world_size-th of them, from the r-th on, as torch's
DistributedSampler with drop_last does.

At its start, an epoch is cut to whole steps, and the remaining samples are dropped. If another number of ranks resumes the epoch,
they take the samples that are left. Their last step may then be short: some ranks have fewer samples than others, or none.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError


def begin(seed: int, epoch: int, samples: int, batch_size: int, world_size: int) -> Position:
    """Return the position before the first step of an epoch. Epochs count from 1."""
    kept = samples - samples % (batch_size * world_size)
    return Position(seed, epoch, 0, samples, batch_size, world_size, kept)


def go_on(position: Position, samples: int, batch_size: int, world_size: int) -> Position:
    """Return `position` for a job that may have another number of ranks or batch size.

    Raises IotwinError if the position does not fit a data set of `samples`.
    """
    if position.samples != samples:
        raise IotwinError(
            f"the checkpoint is of {position.samples} training samples, the data set has {samples}; give it its own data"
        )
    if position.epoch < 1 or not position.position <= position.kept <= samples:
        raise IotwinError(
            f"the checkpoint is at sample {position.position} of {position.kept} in epoch {position.epoch}: beyond the epoch"
        )
    if position.position == 0:  # the epoch has not started, so the current ranks start it
        return begin(position.seed, position.epoch, samples, batch_size, world_size)
    return msgspec.structs.replace(position, batch_size=batch_size, world_size=world_size)


def steps_left(position: Position) -> int:
    """Return the number of steps left in the epoch."""
    return -(-(position.kept - position.position) // (position.batch_size * position.world_size))


def steps_done(position: Position) -> int:
    """Return the number of steps that have been done in the epoch, as if the present number of ranks had done them."""
    return position.position // (position.batch_size * position.world_size)


def positions_of(position: Position, rank: int, step: int = 0) -> range:
    """Return which samples `rank` takes, as indices into the epoch's order, `step` steps after `position`."""
    global_batch = position.batch_size * position.world_size
    first = position.position + step * global_batch
    return range(first + rank, min(first + global_batch, position.kept), position.world_size)


def after(position: Position, steps: int = 1) -> Position:
    """Return the position after `steps` further steps of the epoch."""
    taken = position.position + steps * position.batch_size * position.world_size
    return msgspec.structs.replace(position, position=min(taken, position.kept))


def next_epoch(position: Position) -> Position:
    """Return the position before the first step of the next epoch."""
    return begin(position.seed, position.epoch + 1, position.samples, position.batch_size, position.world_size)


def order_digest(before: str, indices: Sequence[int]) -> str:
    """Return the digest of an order of samples, from the digest `before` of the first part and the `indices` that follow it.

    The result does not depend on how the order is divided into parts.
    """
    digest = before
    for index in indices:
        digest = hashlib.sha256(f"{digest} {index}".encode()).hexdigest()
    return digest
