"""Writes the weights of a model's stages, a file stage<i>.pt each, and reads them into a model."""

import pickle
from pathlib import Path

import torch
from torch import Tensor, nn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.workloads.state.save import save

State = dict[str, Tensor]


def stage_file(folder: Path, stage: int) -> Path:
    """Return the file with the weights of a stage."""
    return folder / f"stage{stage}.pt"


def full_names(model: nn.Module, stage: nn.Module) -> dict[str, str]:
    """Map the names of a stage's parameters and buffers to the names in the whole model. Stage and model share the tensors."""
    known: dict[int, str] = {}
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        known.setdefault(id(tensor), name)
    return {name: known[id(tensor)] for name, tensor in [*stage.named_parameters(), *stage.named_buffers()]}


def whole_state(model: nn.Module, tensors: State) -> State:
    """Return `tensors` by the keys of the model's state dict. Tied weights have several keys, of which `tensors` may have one."""
    first: dict[int, str] = {}
    found = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        same = first.setdefault(id(tensor), name)
        if same in tensors:
            found[name] = tensors[same]
    return found


def write_weights(model: nn.Module, stages: list[nn.Module], folder: Path) -> None:
    """Write the weights of each stage, under their names in the whole model. Raises IotwinError on failure."""
    for index, stage in enumerate(stages):
        own = full_names(model, stage)
        tensors = dict([*stage.named_parameters(), *stage.named_buffers()])
        save({own[name]: tensor.detach() for name, tensor in tensors.items()}, stage_file(folder, index))


def read_weights(model: nn.Module, folder: Path, stages: int) -> None:
    """Replace a model's weights by those of the stages in `folder`. Raises UsageError if they are of another model."""
    tensors: State = {}
    for stage in range(stages):
        tensors |= read_state(stage_file(folder, stage))
    load_state(model, tensors, folder)


def load_state(model: nn.Module, tensors: State, where: Path) -> None:
    """Replace a model's weights by `tensors`, from the file or folder `where`. Raises UsageError if they are of another model."""
    try:
        model.load_state_dict(whole_state(model, tensors))
    except RuntimeError as error:
        raise UsageError(f"{where} does not fit the model: {' '.join(str(error).split())[:200]}") from None


def read_state(path: Path) -> State:
    """Return the tensors of a file that torch.save wrote. Raises IotwinError if it is no such file; no code in it is run."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None
    except (RuntimeError, pickle.UnpicklingError, EOFError, ValueError) as error:
        raise IotwinError(f"{path} holds no state dict of PyTorch: {(str(error).splitlines() or ['empty'])[0][:120]}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise IotwinError(f"{path} holds no state dict of PyTorch: save model.state_dict()")
    return found
