"""Open the checkpoint writer of a rank: one of the emulator's writers, or a plug-in."""

from typing import Protocol

from iotwin.benchmark.emulator.checkpoints.background import Written
from iotwin.benchmark.emulator.checkpoints.remote import RemoteCheckpoints
from iotwin.benchmark.emulator.checkpoints.writer import CheckpointWriter
from iotwin.benchmark.emulator.plugins import CHECKPOINTS, load_plugin
from iotwin.benchmark.emulator.ranks import Rank
from iotwin.workload_yaml import Config


class Checkpoints(Protocol):
    """Interface of the objects that write a rank's checkpoints and read them back."""

    def save(self, epoch: int, step: int = 0) -> list[Written]:
        """Write the checkpoint after `epoch` and `step`. Return the files that became whole since the last call."""

    def finish(self) -> list[Written]:
        """Wait for all unfinished files, and return the files that became whole since the last call."""

    def load(self) -> list[Written]:
        """Read the newest whole checkpoint and return its files. Raises IotwinError if no checkpoint is whole."""


def open_checkpoints(config: Config, rank: Rank | None = None, note: int | None = None) -> Checkpoints:
    """Return the checkpoint writer of `rank` (None: the only rank) for a directory or a URL, or the plug-in of the workload.

    `CheckpointWriter` explains `note`.
    """
    rank = rank or Rank()
    name = config.checkpoint.checkpoint_mechanism_classname
    if name is None and "://" in config.checkpoint.checkpoint_folder:
        return RemoteCheckpoints(config, rank)
    if name is None:
        return CheckpointWriter(config, rank, note)
    key = "checkpoint.checkpoint_mechanism_classname"
    checkpoints: Checkpoints = load_plugin(CHECKPOINTS, name, key, [])(config=config, rank=rank.index, ranks=rank.count)
    return checkpoints
