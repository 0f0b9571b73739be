"""Checkpoints of a pipeline: the first replica of each stage writes its stage, and one manifest lists the files of all stages.

Checkpoints are written when the pipeline is drained, so that each stage has one version of its weights, after the same minibatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from iotwin.common.checkpoints import VERSION, CheckpointManifest, Position, open_checkpoint, read_rank
from iotwin.common.commit import Store
from iotwin.common.errors import IotwinError
from iotwin.common.progress import note
from iotwin.common.retention import Retention
from iotwin.workloads.pipedream.runtime.groups import StageLeader
from iotwin.workloads.pipedream.runtime.weights import SgdVersions, WeightVersions
from iotwin.workloads.policies.pipeline import CHECKPOINTS_KEPT
from iotwin.workloads.state.keeper import code_sha256
from iotwin.workloads.state.torch_state import TORCH

FOLDER = "checkpoint"  # below --checkpoint_dir; the original's --resume DIR/checkpoint thus names the store


class PipelineProgress(NamedTuple):
    """How far the training has come. `trained` counts minibatches; `best_prec1` is in per cent."""

    position: Position
    trained: int
    best_prec1: float


@dataclass
class StageState:
    """The state of a rank's stage. `names` maps the names of the stage's parameters and buffers to those of the whole model."""

    module: nn.Module
    weights: WeightVersions
    optimizer: SgdVersions
    names: Mapping[str, str]

    def state_dict(self) -> dict[str, Any]:
        """Return the weights, buffers and momentum by the names of the whole model."""
        return {
            "weights": self._renamed(self.weights.latest()),
            "buffers": self._renamed(dict(self.module.named_buffers())),
            "velocity": self._renamed(self.optimizer.state),
            "version": self.weights.newest,
        }

    def _renamed(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {self.names[name]: tensor for name, tensor in tensors.items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace weights, buffers and momentum. Raises IotwinError if a name or shape differs."""
        own = {name: state["weights"].get(self.names[name]) for name in self.weights.latest()}
        for name, weight in self.weights.latest().items():
            if own[name] is None or own[name].shape != weight.shape or len(own) != len(state["weights"]):
                raise IotwinError(f"the checkpoint is of other stages: {self.names[name]} differs; resume with its own conf")
        self.weights.restore(state["version"], own)
        with torch.no_grad():
            for name, buffer in self.module.named_buffers():
                buffer.copy_(state["buffers"][self.names[name]])
        velocity = state["velocity"]
        self.optimizer.state = {name: velocity[self.names[name]] for name in own if self.names[name] in velocity}


class StageCheckpoints:
    """Writes a stage's part of the pipeline's checkpoints to a store. Only the stage's first replica (leader) has this object.

    A `with` block locks the store.

    `job` identifies the training: a checkpoint whose manifest has other values is refused.
    """

    def __init__(self, directory: Path, leader: StageLeader, job: dict[str, Any]) -> None:
        self.directory, self._leader, self._job = directory, leader, job
        self.store = Store(directory, Retention(CHECKPOINTS_KEPT), leader)

    def save(self, state: StageState, progress: PipelineProgress, reason: str) -> Path:
        """Write a checkpoint together with the leaders of all stages, who must all call this method. Return its folder."""
        tensors, values = TORCH.flatten(state.state_dict())
        position = progress.position
        manifest = CheckpointManifest(
            VERSION, progress.trained, position.epoch, position, self._leader.world_size, code_sha256=code_sha256(),
            versions=TORCH.versions | {"numpy": np.__version__, "msgspec": msgspec.__version__},
            reason=reason, metric=progress.best_prec1, job=self._job,
        )  # fmt: skip
        self.store.commit(manifest, tensors, {"state": values})
        return self.directory / f"step-{progress.trained}"


def restore(path: Path, stage: int, state: StageState, job: dict[str, Any]) -> PipelineProgress:
    """Load a stage's state from a checkpoint, or from the newest undamaged one of a store.

    Raises IotwinError if the checkpoint is damaged or of another training.
    """
    found = open_checkpoint(path, note)
    if (manifest := found.manifest) is None:
        raise IotwinError(f"{path} holds no checkpoint")
    for key, value in job.items():
        if manifest.job.get(key) != value:
            raise IotwinError(f"{found.path} is of {key} {manifest.job.get(key)}, this training of {key} {value}")
    tensors, values = read_rank(found, stage)
    state.load_state_dict(TORCH.unflatten(values.get("state"), tensors))
    return PipelineProgress(manifest.position, manifest.step, manifest.metric or 0.0)
