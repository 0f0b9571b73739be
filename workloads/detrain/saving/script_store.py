"""The checkpoints of a script in a store: saved at an epoch and batch, and read again."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from iotwin.common.checkpoints import VERSION, CheckpointManifest, Found, Position, checkpoints, open_checkpoint, read_rank
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.retention import Retention
from iotwin.workloads.state.torch_state import TORCH

FOLDER = "checkpoints"
AUTO, NEVER = "auto", "never"


class ResumePoint(NamedTuple):
    """The batch that is not trained on yet: epoch and batch from 0, and how many batches of the run came before."""

    epoch: int
    batch: int
    step: int


class ScriptStore:
    """The store below `output`. `job`: what a checkpoint must share with the script that resumes from it.

    `sources_sha256`: of the files with the script's loops.
    """

    def __init__(self, output: Path, job: dict[str, Any], keep: int = 0, sources_sha256: str = "") -> None:
        self.directory, self._job, self._sources_sha256 = output / FOLDER, job, sources_sha256
        self.store = Store(self.directory, Retention(keep))

    def save(self, point: ResumePoint, reason: str, state: dict[str, Any]) -> str:
        """Write a checkpoint and return its name."""
        tensors, values = TORCH.flatten(state)
        # The position counts batches, since nobody knows how many samples an unknown script's batch has.
        position = Position(0, point.epoch, point.batch, 0, 1, 1)
        versions = TORCH.versions | {"numpy": np.__version__, "msgspec": msgspec.__version__}
        manifest = CheckpointManifest(
            VERSION, point.step, point.epoch, position, 1, code_sha256=self._sources_sha256,
            versions=versions, reason=reason, job=self._job,
        )  # fmt: skip
        return self.store.commit(manifest, tensors, {"state": values}).name

    def find(self, wanted: str) -> Found | None:
        """Return the checkpoint called `wanted`, the newest for `auto`, or None if there is none or none is wanted."""
        if wanted == NEVER or (wanted == AUTO and not (self.directory.is_dir() and checkpoints(self.directory))):
            return None
        return open_checkpoint(self.directory if wanted == AUTO else self.directory / wanted, note)

    def read(self, found: Found) -> tuple[ResumePoint, dict[str, Any]]:
        """Return where a checkpoint was taken, and its state. Raises IotwinError if it is of another script."""
        manifest = found.manifest
        if manifest is None:
            raise IotwinError(f"{found.path} holds no checkpoint")
        for key, value in self._job.items():
            if manifest.job.get(key) != value:
                what = key.replace("_", " ")
                raise IotwinError(
                    f"{found.path} is of {what} {manifest.job.get(key)}, this run of {value}; give it its own output"
                )
        if manifest.code_sha256 != self._sources_sha256:
            note(f"the files with the script's loops have changed since {found.name} was saved; later steps may differ")
        tensors, values = read_rank(found, 0)
        state: dict[str, Any] = TORCH.unflatten(values.get("state"), tensors)
        if not isinstance(state, dict) or "epoch_start" not in state:
            raise IotwinError(f"{found.path} holds no script's state")
        return ResumePoint(manifest.epoch, manifest.position.position, manifest.step), state
