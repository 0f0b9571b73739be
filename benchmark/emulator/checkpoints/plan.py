"""The files of a checkpoint and the writes of each: as recorded, or derived from the model section, or in a format of choice."""

import re
from collections.abc import Callable, Sequence

import numpy as np

from iotwin.benchmark.emulator.checkpoints.formats import as_format
from iotwin.benchmark.emulator.checkpoints.model_states import ModelState, states_read, states_written
from iotwin.benchmark.emulator.checkpoints.planned import PlannedFile
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.workload_yaml import CheckpointFile, Config

_WRITE_BYTES = 8 << 20
_FOLDER = re.compile(r"global_epoch(\d+)_step(\d+)")


def checkpoint_name(epoch: int, step: int) -> str:
    """Return DLIO's name of the folder of one checkpoint."""
    return f"global_epoch{epoch}_step{step}"


def checkpoint_number(name: str) -> tuple[int, int] | None:
    """Return the (epoch, step) that the folder `name` stands for; None when it is no checkpoint's."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


def files_written(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return what `rank` writes at the checkpoint after `epoch` and `step`; a recorded file is one rank's."""
    if not config.twin.checkpoint.files:
        return _formatted(config, lambda other: _of_state(config, states_written(config, other, ranks), epoch, step), rank, ranks)
    found = _formatted(config, lambda other: _recorded(config, other, ranks, (epoch, step)), rank, ranks)
    return [
        file._replace(name=file.name.replace("{epoch}", str(epoch)).replace("{step}", str(step)), pattern=file.name)
        for file in found
    ]


def ever_written(config: Config, rank: int, ranks: int) -> list[PlannedFile]:
    """Return what `rank` writes at any checkpoint, recorded files by names with '{epoch}' and '{step}' in them."""
    if not config.twin.checkpoint.files:
        return files_written(config, 1, 0, rank, ranks)
    return _formatted(config, lambda other: _recorded(config, other, ranks), rank, ranks)


def files_read(config: Config, epoch: int, step: int, rank: int, ranks: int) -> list[PlannedFile]:
    """Return what `rank` reads to recover from that checkpoint."""
    if config.twin.checkpoint.files or config.twin.checkpoint.format == "dcp":  # files that no rank shares
        return files_written(config, epoch, step, rank, ranks) or files_written(config, epoch, step, 0, ranks)
    return _formatted(config, lambda other: _of_state(config, states_read(config, other, ranks), epoch, step), rank, ranks)


def rank_read(config: Config, rank: int, ranks: int, ranks_per_node: int) -> int:
    """Return the rank whose files `rank` reads: its own, or one of the next node's where `recovery_rank_shift` is set."""
    shift = (ranks_per_node % ranks or 1) if config.checkpoint.recovery_rank_shift else 0
    return (rank + shift) % ranks


def _formatted(config: Config, files_of: Callable[[int], list[PlannedFile]], rank: int, ranks: int) -> list[PlannedFile]:
    section = config.twin.checkpoint
    return files_of(rank) if section.format is None else as_format(section.format, files_of, rank, ranks, section.persist_threads)


def _recorded(config: Config, rank: int, ranks: int, number: tuple[int, int] | None = None) -> list[PlannedFile]:
    """Return the recorded files of a rank that are due at the checkpoint after that epoch and step; None: at any."""

    def is_due(file: CheckpointFile) -> bool:
        listed = zip((file.epochs, file.after_steps), number or (), strict=False)
        return rank == min(file.rank, ranks - 1) and all(only is None or own in only for only, own in listed)

    return [
        PlannedFile(
            file.name,
            file.write_sizes,
            file.fsync,
            file.rename,
            file.read_back,
            file.serialization_time,
            file.direct,
            file.looked_at,
            file.format,
            keep=file.keep,
            made_first=file.made_first,
        )
        for file in config.twin.checkpoint.files
        if is_due(file)
    ]


def _of_state(config: Config, states: Sequence[ModelState], epoch: int, step: int) -> list[PlannedFile]:
    return [_from_state(config, state, epoch, step) for state in states]


def _from_state(config: Config, state: ModelState, epoch: int, step: int) -> PlannedFile:
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
