"""Opens the checkpoint writer of a rank: one of the emulator's writers, or a plug-in."""

from collections.abc import Callable
from typing import Protocol

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.remote import RemoteCheckpoints
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.plugins import CHECKPOINTS, load_plugin
from iotwin.workload_yaml import Config


class Checkpoints(Protocol):
    """Interface of the objects that write a rank's checkpoints and read them back."""

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`. Return the files that became whole since the last call."""

    def finish(self) -> list[Written]:
        """Wait for all unfinished files, and return the files that became whole since the last call."""

    def load(self) -> list[Written]:
        """Read the newest whole checkpoint and return its files. Raises IotwinError if no checkpoint is whole."""


def open_checkpoints(
    config: Config,
    rank: int = 0,
    ranks: int = 1,
    ranks_per_node: int = 1,
    note: int | None = None,
    meet: Callable[[], object] = lambda: None,
    arrive: Callable[[], Callable[[], bool]] = lambda: lambda: True,
) -> Checkpoints:
    """Return the checkpoint writer of `rank`: one for a directory, one for a URL, or the plug-in that the workload names."""
    name = config.checkpoint.checkpoint_mechanism_classname
    if name is None and "://" in config.checkpoint.checkpoint_folder:
        return RemoteCheckpoints(config, rank, ranks, ranks_per_node)
    if name is None:
        return CheckpointWriter(config, rank, ranks, ranks_per_node, note, meet, arrive)
    key = "checkpoint.checkpoint_mechanism_classname"
    checkpoints: Checkpoints = load_plugin(CHECKPOINTS, name, key, [])(config=config, rank=rank, ranks=ranks)
    return checkpoints
