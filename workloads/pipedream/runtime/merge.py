"""Merges the stages of a checkpoint into a whole model, and exports them under the names of PipeDream's own checkpoints."""

from pathlib import Path
from typing import Any

from torch import nn

from iotwin.common.checkpoints import CheckpointManifest, Found, open_checkpoint, read_rank
from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder
from iotwin.common.progress import note
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.weights import whole_state
from iotwin.workloads.state.save import save
from iotwin.workloads.state.torch_state import TORCH


def merge(checkpoint: Path, output: Path, stages: Path | None = None) -> dict[str, Any]:
    """Write the state dict of the whole model to the file `output`, and return a description.

    `checkpoint` is a checkpoint or a store, of which the newest is taken. The folder `stages`, if given, also gets
    ``checkpoint.<stage>.pth.tar`` files with the keys of PipeDream's: epoch, arch, state_dict, best_prec1, optimizer.
    Raises IotwinError if the checkpoint is damaged, or does not hold exactly the tensors of its model.
    """
    found = open_checkpoint(checkpoint, note)
    model, states = whole_model(found)
    whole = model.state_dict()
    save(whole, output)
    manifest = manifest_of(found)
    files = _export(states, stages, manifest) if stages else []
    return {
        "checkpoint": str(found.path), "output": str(output), "network": manifest.job["network"], "epoch": manifest.epoch - 1,
        "minibatches": manifest.step, "stages": len(states), "tensors": len(whole), "stage_files": files,
        "parameters": sum(weight.numel() for state in states for weight in state["weights"].values()),
    }  # fmt: skip


def manifest_of(found: Found) -> CheckpointManifest:
    """Return the manifest of a checkpoint. Raises IotwinError if the checkpoint is not of a pipeline."""
    if found.manifest is None or found.manifest.job.get("job") != "pipedream":
        raise IotwinError(f"{found.path} is no checkpoint of a pipeline; name one that iotwin.workloads.pipedream wrote")
    return found.manifest


def whole_model(found: Found) -> tuple[nn.Module, list[dict[str, Any]]]:
    """Return the model with the weights of a checkpoint, and the state of each stage.

    Raises IotwinError if the checkpoint is not of a pipeline, or does not hold exactly the tensors of its model.
    """
    manifest = manifest_of(found)
    states = [_stage_state(found, stage) for stage in range(manifest.world_size)]
    tensors = {name: tensor for state in states for kind in ("weights", "buffers") for name, tensor in state[kind].items()}
    model = build(manifest.job["network"], manifest.job["preset"], manifest.job["classes"] or None).module
    try:
        model.load_state_dict(whole_state(model, tensors))
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise IotwinError(f"{found.path} does not fit the model {manifest.job['network']}: {reason}") from None
    return model, states


def _stage_state(found: Found, stage: int) -> dict[str, Any]:
    tensors, values = read_rank(found, stage)
    state: dict[str, Any] = TORCH.unflatten(values.get("state"), tensors)
    return state


def _export(states: list[dict[str, Any]], folder: Path, manifest: CheckpointManifest) -> list[str]:
    make_folder(folder)
    written = []
    for stage, state in enumerate(states):
        path = folder / f"checkpoint.{stage}.pth.tar"
        save({
            "epoch": manifest.epoch - 1, "arch": manifest.job["network"],
            "state_dict": {"module0": state["weights"] | state["buffers"]}, "best_prec1": manifest.metric or 0.0,
            "optimizer": {"momentum_buffer": state["velocity"]},
        }, path)  # fmt: skip
        written.append(str(path))
    return written
