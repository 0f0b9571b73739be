"""What writes the checkpoints of a rank: the emulator's own writer, or a plug-in."""

from collections.abc import Callable
from typing import Protocol

from benchmark.config import Config
from benchmark.emulator.checkpoints.background import Written
from benchmark.emulator.checkpoints.writer import CheckpointWriter
from benchmark.emulator.plugins import CHECKPOINTS, load_plugin


class Checkpoints(Protocol):
    """What writes a rank's checkpoints and reads them back."""

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`; return the files that are whole since the last call."""

    def finish(self) -> list[Written]:
        """Wait for what is still being written and return the files that are whole since the last call."""

    def load(self) -> list[Written]:
        """Read the newest whole checkpoint and return its files; IotwinError when there is none."""


def open_checkpoints(
    config: Config,
    rank: int = 0,
    ranks: int = 1,
    ranks_per_node: int = 1,
    note: int | None = None,
    meet: Callable[[], object] = lambda: None,
    arrive: Callable[[], Callable[[], bool]] = lambda: lambda: True,
) -> Checkpoints:
    """Return what writes the checkpoints of `rank`: CheckpointWriter, or the plug-in that the workload names."""
    name = config.checkpoint.checkpoint_mechanism_classname
    if name is None:
        return CheckpointWriter(config, rank, ranks, ranks_per_node, note, meet, arrive)
    key = "checkpoint.checkpoint_mechanism_classname"
    checkpoints: Checkpoints = load_plugin(CHECKPOINTS, name, key, [])(config=config, rank=rank, ranks=ranks)
    return checkpoints
