"""The files of a checkpoint and the writes of each: as recorded, or derived from the model section."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import numpy as np

from benchmark.config import Config, Duration
from benchmark.emulator.checkpoints.model_states import State, states_read, states_written
from common.numbers.keyed import Purpose, generator

_WRITE_BYTES = 8 << 20
_FOLDER = re.compile(r"global_epoch(\d+)_step(\d+)")


class PlannedFile(NamedTuple):
    """One file of a checkpoint."""

    name: str  # within the checkpoint folder
    write_sizes: Sequence[tuple[int, int]]  # [bytes, how often], in order
    fsync: bool
    rename: bool  # written under a temporary name, then renamed
    read_back: Sequence[tuple[int, int]] = ()  # [offset, bytes] of each read once it is written
    serialization_time: Duration | None = None  # None: a share of all files'
    direct: bool = False  # past the page cache
    looked_at: Literal["opened", "read"] | None = None  # at each later checkpoint while this one is there

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return sum(size * count for size, count in self.write_sizes)

    def sizes(self) -> Iterator[int]:
        """Yield the bytes of each write."""
        for size, count in self.write_sizes:
            for _ in range(count):
                yield size


def checkpoint_name(epoch: int, step: int) -> str:
    """Return DLIO's name of the folder of one checkpoint."""
    return f"global_epoch{epoch}_step{step}"


def checkpoint_number(name: str) -> tuple[int, int] | None:
    """Return the (epoch, step) that the folder `name` stands for; None when it is no checkpoint's."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def files_written(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return what `rank` writes at the checkpoint after `epoch` and `step`; a recorded file is one rank's."""
    recorded = config.twin.checkpoint.files
    if not recorded:
        return [_from_state(config, state, epoch, step) for state in states_written(config, rank, ranks)]
    due = [file for file in recorded if rank == min(file.rank, ranks - 1) and (file.epochs is None or epoch in file.epochs)]
    names = [file.name.replace("{epoch}", str(epoch)).replace("{step}", str(step)) for file in due]
    return [
        PlannedFile(
            name, file.write_sizes, file.fsync, file.rename, file.read_back, file.serialization_time, file.direct, file.looked_at
        )
        for name, file in zip(names, due, strict=True)
    ]


def files_read(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return what `rank` reads to recover from that checkpoint."""
    if config.twin.checkpoint.files:
        return files_written(config, epoch, step, rank, ranks) or files_written(config, epoch, step, 0, ranks)
    return [_from_state(config, state, epoch, step) for state in states_read(config, rank, ranks)]


def _from_state(config: Config, state: State, epoch: int, step: int) -> PlannedFile:
    name = f"{checkpoint_name(epoch, step)}/{state.name}"
    checkpoint = config.checkpoint
    if checkpoint.ckpt_write_sz_mean is None:
        each = config.twin.checkpoint.write_size or _WRITE_BYTES
        whole, rest = divmod(state.size_bytes, each)
        write_sizes: Sequence[tuple[int, int]] = [(size, count) for size, count in ((each, whole), (rest, 1)) if size and count]
    else:
        write_sizes = [(size, 1) for size in _drawn_sizes(config, state.size_bytes)]
    return PlannedFile(name, write_sizes, False, config.twin.checkpoint.rename)


def _drawn_sizes(config: Config, size_bytes: int) -> list[int]:
    """Return writes that alternate between the small size and a draw from the normal curve, until they make `size_bytes`.

    As the artifact's fork of DLIO mimics what torch.save was seen to write.
    """
    checkpoint = config.checkpoint
    mean, least = checkpoint.ckpt_write_sz_mean or 1, checkpoint.ckpt_write_sz_min or 1
    small = checkpoint.ckpt_write_sz_q1 or least
    draw = generator(config.train.seed, Purpose.CHECKPOINT_CONTENT, step=1)
    sizes: list[int] = []
    left = size_bytes
    while left:
        large = int(np.clip(draw.normal(mean, checkpoint.ckpt_write_sz_std or 0), least, None))
        for size in (small, large):
            if left:
                sizes.append(min(size, left))
                left -= sizes[-1]
    return sizes
