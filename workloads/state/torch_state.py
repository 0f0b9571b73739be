"""Splits the state of a PyTorch job into tensors and plain values, joins them again, and saves PyTorch's random generators."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from iotwin.common.tensor_file import ITEM_BYTES, Tensor
from iotwin.workloads.state import nested_state
from iotwin.workloads.state.nested_state import ARRAY, TENSOR, Framework, flatten_by, unflatten_by

_NAMES = {getattr(torch, name): name for name in ITEM_BYTES}
_Copy = Callable[[torch.Tensor], torch.Tensor]


def flatten(state: Any, copy: _Copy = torch.Tensor.detach) -> tuple[list[Tensor], Any]:
    """Split a state of nested dicts, lists and tuples. Return (its tensors and numpy arrays; the rest as JSON values).

    `copy` is applied to each tensor. By default CPU tensors are not copied, so they must be written before training continues.
    Raises TypeError if a value is neither a tensor nor a JSON value.
    """

    def leaf(name: str, value: Any) -> tuple[str, Tensor] | None:
        if isinstance(value, torch.Tensor):
            return TENSOR, as_tensor(name, copy(value))
        if isinstance(value, np.ndarray):
            return ARRAY, as_tensor(name, copy(torch.from_numpy(value)))
        return None

    return flatten_by(leaf, state)


def dtype_name(name: str, tensor: torch.Tensor) -> str:
    """Return the name of a tensor's element type in checkpoints. Raises TypeError if a checkpoint cannot hold the tensor."""
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None or tensor.layout != torch.strided:
        raise TypeError(f"{name} is a tensor of {tensor.dtype} in layout {tensor.layout}, which a checkpoint cannot hold")
    return dtype


def as_tensor(name: str, tensor: torch.Tensor) -> Tensor:
    """Return `tensor` as a tensor of a checkpoint file. A tensor in CPU memory is not copied."""
    dtype = dtype_name(name, tensor)
    content = tensor.detach().to("cpu").contiguous().reshape(-1)
    return Tensor(name, dtype, tuple(tensor.shape), content.view(torch.uint8).numpy())


def unflatten(values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state whose parts `flatten` returned, with tensors on the CPU. Raises IotwinError if a tensor is missing."""
    return unflatten_by(_restored, values, tensors)


def _restored(mark: str, tensor: Tensor) -> Any:
    _, dtype, shape, data = tensor
    found = torch.from_numpy(data).view(getattr(torch, dtype)) if data.size else torch.empty(0, dtype=getattr(torch, dtype))
    return found.reshape(shape).numpy() if mark == ARRAY else found.reshape(shape)


class TorchGenerators(nested_state.NumpyGenerators):
    """The global random generators of Python, numpy and torch, on every device."""

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the global random generators."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {**super().state_dict(), "torch": torch.get_rng_state(), "devices": devices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators to the states that `state_dict` returned. States of devices that this machine lacks are ignored."""
        super().load_state_dict(state)
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            for device, device_state in enumerate(state["devices"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(device_state, device)


TORCH = Framework({"torch": str(torch.__version__)}, flatten, unflatten, TorchGenerators())


def weights_sha256(models: Iterable[nn.Module]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of the models' parameters and buffers."""
    return nested_state.digest_of(as_tensor(name, value) for model in models for name, value in model.state_dict().items())
