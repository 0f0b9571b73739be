"""Converts a script's tensors and arrays to values that a checkpoint can hold, and back."""

from typing import Any

import numpy as np
import torch

from iotwin.common.tensor_file import ITEM_BYTES
from iotwin.workloads.detrain.saving.script_state import Part
from iotwin.workloads.detrain.saving.sharded_tensors import is_sharded

State = dict[str, Any]
_TYPES = {getattr(torch, name) for name in ITEM_BYTES}


def can_be_saved(value: Any) -> bool:
    """Return whether a checkpoint can hold a tensor or array."""
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufcSUmM"
    return value.layout == torch.strided and value.dtype in _TYPES and value.device.type != "meta" and not is_sharded(value)


def saved_tensor(value: Any) -> State:
    """Return the checkpoint's value for an array or a tensor. A leaf tensor is saved with its gradient."""
    if isinstance(value, np.ndarray):
        content = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
        return {"array": content, "type": value.dtype.str, "shape": list(value.shape)}
    leaf = value.is_leaf and value.requires_grad
    return {
        "data": value.detach(), "device": str(value.device), "parameter": isinstance(value, torch.nn.Parameter),
        "requires_grad": leaf, "grad": value.grad if leaf else None,
    }  # fmt: skip


def made_tensor(saved: State) -> Any:
    """Return a new tensor or array."""
    if "array" in saved:
        return saved["array"].copy().view(np.dtype(saved["type"])).reshape(saved["shape"])
    made = saved["data"].clone().to(saved["device"])
    made = torch.nn.Parameter(made, saved["requires_grad"]) if saved["parameter"] else made.requires_grad_(saved["requires_grad"])
    made.grad = _gradient(saved)
    return made


def _gradient(saved: State) -> torch.Tensor | None:
    return None if saved["grad"] is None else saved["grad"].clone().to(saved["device"])


def put_tensor(part: Part, saved: State) -> None:
    """Set the content of a tensor or array in place, so that all references see it. If the shape differs, replace the object."""
    held, new = part.value, made_tensor(saved)
    if isinstance(held, torch.Tensor) != isinstance(new, torch.Tensor) or held.shape != new.shape or held.dtype != new.dtype:
        part.put(new)
    elif isinstance(held, torch.Tensor):
        with torch.no_grad():
            held.copy_(new)
        held.grad = _gradient(saved)
    else:
        held[...] = new
