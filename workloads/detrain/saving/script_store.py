"""Saves and reads the checkpoints of a script, each with its epoch and batch."""

from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from iotwin.common.checkpoints import VERSION, CheckpointManifest, Found, Position, checkpoints, look, open_checkpoint, read_rank
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.retention import Retention
from iotwin.workloads.detrain.script_ranks import ScriptRanks
from iotwin.workloads.state.torch_state import TORCH

FOLDER = "checkpoints"
AUTO, NEVER = "auto", "never"


class ResumePoint(NamedTuple):
    """The first batch that is not trained on yet: epoch and batch from 0, and the number of batches of the run before it."""

    epoch: int
    batch: int
    step: int


class ScriptStore:
    """The store below `output`. `job`: properties that must be equal for a checkpoint and the script that resumes from it.

    `sources_sha256`: digest of the files with the script's loops. Each of several `ranks` has a ScriptStore of the same folder,
    and all must call the same methods in the same order.
    """

    def __init__(
        self, output: Path, job: dict[str, Any], keep: int = 0, sources_sha256: str = "", ranks: ScriptRanks | None = None
    ) -> None:
        self.directory, self._job, self._sources_sha256 = output / FOLDER, job, sources_sha256
        self._ranks = ranks or ScriptRanks()
        self.store = Store(self.directory, Retention(keep), self._ranks)

    def save(self, point: ResumePoint, reason: str, state: dict[str, Any]) -> str:
        """Write a checkpoint and return its name."""
        tensors, values = TORCH.flatten(state)
        # The position counts batches, since nobody knows how many samples an unknown script's batch has.
        size = self._ranks.world_size
        position = Position(0, point.epoch, point.batch, 0, 1, size)
        versions = TORCH.versions | {"numpy": np.__version__, "msgspec": msgspec.__version__}
        manifest = CheckpointManifest(
            VERSION, point.step, point.epoch, position, size, code_sha256=self._sources_sha256,
            versions=versions, reason=reason, job=self._job,
        )  # fmt: skip
        return str(self._ranks.from_first(self.store.commit(manifest, tensors, {"state": values}).name))

    def find(self, wanted: str) -> Found | None:
        """Return the checkpoint called `wanted`, or the newest one for `auto`. None if `auto` finds none, or if none is wanted.

        Rank 0 chooses and verifies it. Raises IotwinError if the checkpoint is missing or damaged, or if another rank does not
        find it.
        """
        found = self._chosen(wanted) if self._ranks.rank == 0 else None
        name = self._ranks.from_first(found and found.name)
        if name is not None and found is None:
            found = look(self.directory / name)
        [missing] = self._ranks.sum(float(found is not None and found.reason is not None))
        if found is not None and missing:
            raise IotwinError(f"{found.path}: the ranks do not find the same checkpoint; all must have the same directory")
        return found

    def _chosen(self, wanted: str) -> Found | None:
        known = [each.name for each in checkpoints(self.directory)] if self.directory.is_dir() else []
        if wanted == NEVER or (wanted == AUTO and not known):
            return None
        if wanted not in (AUTO, *known):
            here = f"it has {', '.join(known)}" if known else "it has none"
            raise IotwinError(f"--resume {wanted}: {self.directory} has no such checkpoint; {here}")
        return open_checkpoint(self.directory if wanted == AUTO else self.directory / wanted, note)

    def read(self, found: Found) -> tuple[ResumePoint, dict[str, Any]]:
        """Return (epoch and batch of a checkpoint, its state). Raises IotwinError if it is of another script."""
        manifest = found.manifest
        if manifest is None:
            raise IotwinError(f"{found.path} holds no checkpoint")
        for key, value in self._job.items():
            if manifest.job.get(key) != value:
                what = key.replace("_", " ")
                raise IotwinError(
                    f"{found.path} is of {what} {manifest.job.get(key)}, this run of {value}; give it its own output"
                )
        if manifest.world_size != self._ranks.world_size:
            here, saved = self._ranks.world_size, manifest.world_size
            raise IotwinError(f"{found.path} is of {saved} rank{'s' * (saved > 1)}, this run has {here}; start {saved} of them")
        if manifest.code_sha256 != self._sources_sha256:
            note(f"the files with the script's loops have changed since {found.name} was saved; later steps may differ")
        tensors, values = read_rank(found, self._ranks.rank)
        state: dict[str, Any] = TORCH.unflatten(values.get("state"), tensors)
        if not isinstance(state, dict) or "epoch_start" not in state:
            raise IotwinError(f"{found.path} holds no script's state")
        return ResumePoint(manifest.epoch, manifest.position.position, manifest.step), state
