"""Plan the files of a checkpoint and their writes.

They are the recorded files, or follow from the YAML's model section, and may be converted to another format.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from msgspec.structs import asdict, replace

from iotwin.benchmark.emulator.checkpoints.formats import FilesOf, as_format
from iotwin.benchmark.emulator.checkpoints.model_states import ModelState, states_read, states_written
from iotwin.benchmark.emulator.checkpoints.one_file import PlannedFile
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.workload_yaml import Checkpoint, CheckpointFile, Config

_WRITE_BYTES = 8 << 20
Number = tuple[int, int]  # (epoch, step) after which a checkpoint was written

_FOLDER = re.compile(r"global_epoch(\d+)_step(\d+)")


def checkpoint_name(epoch: int, step: int) -> str:
    """Return DLIO's name of a checkpoint's folder."""
    return f"global_epoch{epoch}_step{step}"


def checkpoint_number(name: str) -> Number | None:
    """Return the (epoch, step) in the folder name `name`; None if it is not the name of a checkpoint's folder."""
    match = _FOLDER.fullmatch(name)
    return (int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True)
class CheckpointPlan:
    """The files of the checkpoints of a workload that runs as `ranks` ranks. A number is the (epoch, step) of a checkpoint."""

    config: Config
    ranks: int

    def written(self, rank: int, number: Number | None = None) -> list[PlannedFile]:
        """Return the files that `rank` writes at the checkpoint `number`; None: at any checkpoint.

        Without a number, the names of recorded files contain '{epoch}' and '{step}'.
        """
        if not self.config.twin.checkpoint.files:
            return self._of_states(states_written, rank, number or (1, 0))
        found = self._formatted(lambda other: self._recorded(other, number), rank)
        if number is None:
            return found
        epoch, step = map(str, number)
        return [
            replace(file, name=file.name.replace("{epoch}", epoch).replace("{step}", step), pattern=file.name) for file in found
        ]

    def written_by_all(self, number: Number | None = None) -> list[PlannedFile]:
        """Return the files that all ranks write at the checkpoint `number`; None: at any checkpoint."""
        return [file for rank in range(self.ranks) for file in self.written(rank, number)]

    def read(self, rank: int, number: Number) -> list[PlannedFile]:
        """Return the files that `rank` reads to recover from the checkpoint `number`."""
        section = self.config.twin.checkpoint
        if section.files or section.format == "dcp":  # each rank reads the files that it wrote
            return self.written(rank, number) or self.written(0, number)
        return self._of_states(states_read, rank, number)

    def _of_states(
        self, states_of: Callable[[Config, int, int], list[ModelState]], rank: int, number: Number
    ) -> list[PlannedFile]:
        """Return the files of the checkpoint `number` for the model states that `states_of(config, rank, ranks)` returns."""
        folder, config = checkpoint_name(*number), self.config
        return self._formatted(
            lambda other: [_of_state(config, folder, state) for state in states_of(config, other, self.ranks)], rank
        )

    def _formatted(self, files_of: FilesOf, rank: int) -> list[PlannedFile]:
        section = self.config.twin.checkpoint
        if section.format is None:
            return files_of(rank)
        return as_format(section.format, files_of, rank, self.ranks, section.persist_threads)

    def _recorded(self, rank: int, number: Number | None) -> list[PlannedFile]:
        """Return the recorded files that `rank` writes at the checkpoint `number`; with None, those of all checkpoints."""

        by_steps = self.config.checkpoint.steps_between_checkpoints > 0

        def is_due(file: CheckpointFile) -> bool:
            is_listed = number is None or file.after is None or number[by_steps] in file.after
            return rank == min(file.rank, self.ranks - 1) and is_listed

        return [PlannedFile(**asdict(file)) for file in self.config.twin.checkpoint.files if is_due(file)]


def rank_read(section: Checkpoint, rank: Rank) -> int:
    """Return the index of the rank whose files `rank` reads: itself, or a rank on the next node if `recovery_rank_shift`."""
    shift = (rank.count // rank.nodes % rank.count or 1) if section.recovery_rank_shift else 0
    return (rank.index + shift) % rank.count


def _of_state(config: Config, folder: str, state: ModelState) -> PlannedFile:
    checkpoint = config.checkpoint
    if checkpoint.ckpt_write_sz_mean is None:
        whole, rest = divmod(state.size_bytes, _WRITE_BYTES)
        write_sizes = [(size, count) for size, count in ((_WRITE_BYTES, whole), (rest, 1)) if size and count]
    else:
        write_sizes = [(size, 1) for size in _drawn_sizes(config, state.size_bytes)]
    return PlannedFile(f"{folder}/{state.name}", write_sizes, rename=True)


def _drawn_sizes(config: Config, size_bytes: int) -> list[int]:
    """Return sizes of writes that alternate between a small size and a draw from a normal curve; their sum is `size_bytes`.

    In this way the paper artifact's fork of DLIO imitates the writes of torch.save.
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
