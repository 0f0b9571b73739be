"""Plan the files of a checkpoint and their writes: as recorded, or by the model section, or converted to another format."""

import re
from collections.abc import Callable, Sequence

import numpy as np
from msgspec.structs import asdict, replace

from iotwin.benchmark.emulator.checkpoints.formats import as_format
from iotwin.benchmark.emulator.checkpoints.model_states import ModelState, states_read, states_written
from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.workload_yaml import CheckpointFile, Config

_WRITE_BYTES = 8 << 20
_FOLDER = re.compile(r"global_epoch(\d+)_step(\d+)")


def checkpoint_name(epoch: int, step: int) -> str:
    """Return DLIO's name of a checkpoint's folder."""
    return f"global_epoch{epoch}_step{step}"


def checkpoint_number(name: str) -> tuple[int, int] | None:
    """Return the (epoch, step) in the folder name `name`; None if it is not the name of a checkpoint's folder."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def files_written(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return the files that `rank` of `ranks` writes at the checkpoint after `epoch` and `step`."""
    if not config.twin.checkpoint.files:
        return _formatted(config, lambda other: _of_state(config, states_written(config, other, ranks), epoch, step), rank, ranks)
    found = _formatted(config, lambda other: _recorded(config, other, ranks, (epoch, step)), rank, ranks)
    return [
        replace(file, name=file.name.replace("{epoch}", str(epoch)).replace("{step}", str(step)), pattern=file.name)
        for file in found
    ]


def ever_written(config: Config, rank: int, ranks: int) -> list[PlannedFile]:
    """Return the files that `rank` writes at any checkpoint. Names of recorded files contain '{epoch}' and '{step}'."""
    if not config.twin.checkpoint.files:
        return files_written(config, 1, 0, rank, ranks)
    return _formatted(config, lambda other: _recorded(config, other, ranks), rank, ranks)


def files_read(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return the files that `rank` reads to recover from the checkpoint after `epoch` and `step`."""
    if config.twin.checkpoint.files or config.twin.checkpoint.format == "dcp":  # each rank reads the files that it wrote
        return files_written(config, epoch, step, rank, ranks) or files_written(config, epoch, step, 0, ranks)
    return _formatted(config, lambda other: _of_state(config, states_read(config, other, ranks), epoch, step), rank, ranks)


def rank_read(config: Config, rank: Rank) -> int:
    """Return the index of the rank whose files `rank` reads: itself, or a rank on the next node if `recovery_rank_shift`."""
    shift = (rank.count // rank.nodes % rank.count or 1) if config.checkpoint.recovery_rank_shift else 0
    return (rank.index + shift) % rank.count


def _formatted(config: Config, files_of: Callable[[int], list[PlannedFile]], rank: int, ranks: int) -> list[PlannedFile]:
    section = config.twin.checkpoint
    return files_of(rank) if section.format is None else as_format(section.format, files_of, rank, ranks, section.persist_threads)


def _recorded(config: Config, rank: int, ranks: int, number: tuple[int, int] | None = None) -> list[PlannedFile]:
    """Return the recorded files of `rank` that are due at the checkpoint `number` (epoch, step). None: at any checkpoint."""

    def is_due(file: CheckpointFile) -> bool:
        listed = zip((file.epochs, file.after_steps), number or (), strict=False)
        return rank == min(file.rank, ranks - 1) and all(only is None or own in only for only, own in listed)

    return [PlannedFile(**asdict(file)) for file in config.twin.checkpoint.files if is_due(file)]


def _of_state(config: Config, states: Sequence[ModelState], epoch: int, step: int) -> list[PlannedFile]:
    return [_from_state(config, state, epoch, step) for state in states]


def _from_state(config: Config, state: ModelState, epoch: int, step: int) -> PlannedFile:
    name = f"{checkpoint_name(epoch, step)}/{state.name}"
    checkpoint = config.checkpoint
    if checkpoint.ckpt_write_sz_mean is None:
        each = config.twin.checkpoint.write_size or _WRITE_BYTES
        whole, rest = divmod(state.size_bytes, each)
        write_sizes = [(size, count) for size, count in ((each, whole), (rest, 1)) if size and count]
    else:
        write_sizes = [(size, 1) for size in _drawn_sizes(config, state.size_bytes)]
    return PlannedFile(name, write_sizes, rename=config.twin.checkpoint.rename)


def _drawn_sizes(config: Config, size_bytes: int) -> list[int]:
    """Return sizes of writes that alternate between a small size and a draw from a normal curve; their sum is `size_bytes`.

    The paper artifact's fork of DLIO imitates the writes of torch.save so.
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
