"""Where a job stands in its data, and which samples each rank takes next: exactly once an epoch, on any number of ranks.

An epoch consumes a global order of its samples from the front. A step of `world_size` ranks with `batch_size` each takes the
next world_size * batch_size positions of it, rank r every world_size-th of them from the r-th on, as torch's DistributedSampler
and a loader with drop_last do. What the epoch keeps is fixed where it begins: the whole steps of the ranks that began it; the
rest of the samples is left out, as published. Ranks of another number take the positions that are left, so that each kept sample
is consumed once; their last step may then be a short one, in which some ranks have fewer samples than others, or none.
"""

import hashlib
from collections.abc import Sequence

import msgspec

from common.checkpoints import Position
from common.errors import IotwinError


def begin(seed: int, epoch: int, samples: int, batch_size: int, world_size: int) -> Position:
    """Return the position before the first step of an epoch (from 1)."""
    kept = samples - samples % (batch_size * world_size)
    return Position(seed, epoch, 0, samples, batch_size, world_size, kept)


def go_on(position: Position, samples: int, batch_size: int, world_size: int) -> Position:
    """Return `position` for ranks of another number or batch size; IotwinError when it is none of a data set of `samples`."""
    if position.samples != samples:
        raise IotwinError(
            f"the checkpoint is of {position.samples} training samples, the data set has {samples}; give it its own data"
        )
    if position.epoch < 1 or not position.position <= position.kept <= samples:
        raise IotwinError(
            f"the checkpoint stands at sample {position.position} of {position.kept} in epoch {position.epoch}: beyond the epoch"
        )
    if position.position == 0:  # nothing of the epoch is taken yet: it is that of the ranks that are there now
        return begin(position.seed, position.epoch, samples, batch_size, world_size)
    return msgspec.structs.replace(position, batch_size=batch_size, world_size=world_size)


def steps_left(position: Position) -> int:
    """Return how many steps the epoch still has."""
    return -(-(position.kept - position.position) // (position.batch_size * position.world_size))


def steps_done(position: Position) -> int:
    """Return how many steps of this number of ranks the epoch has behind it."""
    return position.position // (position.batch_size * position.world_size)


def positions_of(position: Position, rank: int, step: int = 0) -> range:
    """Return the positions of the epoch's order that `rank` takes in the step after `step` others."""
    global_batch = position.batch_size * position.world_size
    first = position.position + step * global_batch
    return range(first + rank, min(first + global_batch, position.kept), position.world_size)


def after(position: Position, steps: int = 1) -> Position:
    """Return the position after `steps` more steps of the epoch."""
    taken = position.position + steps * position.batch_size * position.world_size
    return msgspec.structs.replace(position, position=min(taken, position.kept))


def next_epoch(position: Position) -> Position:
    """Return the position before the first step of the epoch after this one."""
    return begin(position.seed, position.epoch + 1, position.samples, position.batch_size, position.world_size)


def order_digest(before: str, indices: Sequence[int]) -> str:
    """Return the digest of an order: that `before` followed by `indices`. The same for the same samples in steps of any size."""
    digest = before
    for index in indices:
        digest = hashlib.sha256(f"{digest} {index}".encode()).hexdigest()
    return digest
