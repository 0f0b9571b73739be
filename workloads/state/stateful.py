"""A job's state as tensors and plain values, and back: weights, optimizers, schedulers, scalers, random generators."""

import hashlib
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

from common.errors import IotwinError
from common.tensor_file import ITEM_BYTES, Tensor

_TENSOR, _ARRAY, _TUPLE, _ITEMS = "$tensor", "$array", "$tuple", "$items"
_MARKS = (_TENSOR, _ARRAY, _TUPLE, _ITEMS)
_NAMES = {getattr(torch, name): name for name in ITEM_BYTES}
_PLAIN = frozenset((bool, int, float, str, type(None)))
_Copy = Callable[[torch.Tensor], torch.Tensor]


def flatten(state: Any, copy: _Copy = torch.Tensor.detach) -> tuple[list[Tensor], Any]:
    """Return the tensors and arrays in nested dicts, lists and tuples, and what is around them as JSON can hold it.

    Tensors on the CPU are not copied: write them before training goes on, or give a `copy` that returns a copy of each.
    TypeError for a value that is neither.
    """
    tensors: list[Tensor] = []
    return tensors, _flatten(state, "", tensors, copy)


def _flatten(value: Any, path: str, tensors: list[Tensor], copy: _Copy) -> Any:
    def inner(key: Any, each: Any) -> Any:
        return _flatten(each, f"{path}.{key}" if path else str(key), tensors, copy)

    if isinstance(value, torch.Tensor):
        tensors.append(_as_tensor(path, copy(value)))
        return {_TENSOR: path}
    if isinstance(value, np.ndarray):
        tensors.append(_as_tensor(path, copy(torch.from_numpy(value))))
        return {_ARRAY: path}
    if isinstance(value, (tuple, list)) and all(type(each) in _PLAIN for each in value):  # Python's generator has 625 numbers
        return {_TUPLE: list(value)} if isinstance(value, tuple) else list(value)
    if isinstance(value, tuple):
        return {_TUPLE: [inner(index, each) for index, each in enumerate(value)]}
    if isinstance(value, list):
        return [inner(index, each) for index, each in enumerate(value)]
    if isinstance(value, dict):
        pairs = [[key, inner(key, each)] for key, each in value.items()]
        plain = all(isinstance(key, str) and key not in _MARKS for key, _ in pairs)
        return dict(pairs) if plain else {_ITEMS: pairs}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"{path or 'the state'} is a {type(value).__name__}, which a checkpoint cannot hold")


def _as_tensor(name: str, tensor: torch.Tensor) -> Tensor:
    dtype = _NAMES.get(tensor.dtype)
    if dtype is None or tensor.layout != torch.strided:
        raise TypeError(f"{name} is a tensor of {tensor.dtype} in layout {tensor.layout}, which a checkpoint cannot hold")
    content = tensor.detach().to("cpu").contiguous().reshape(-1)
    return Tensor(name, dtype, tuple(tensor.shape), content.view(torch.uint8).numpy())


def unflatten(values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `flatten` was given, its tensors on the CPU; IotwinError when a tensor is missing."""
    if isinstance(values, list):
        return [unflatten(each, tensors) for each in values]
    if not isinstance(values, dict):
        return values
    if len(values) == 1:
        [(mark, inner)] = values.items()
        if mark in (_TENSOR, _ARRAY):
            tensor = _torch(tensors, inner)
            return tensor.numpy() if mark == _ARRAY else tensor
        if mark == _TUPLE:
            return tuple(unflatten(each, tensors) for each in inner)
        if mark == _ITEMS:
            return {key: unflatten(each, tensors) for key, each in inner}
    return {key: unflatten(each, tensors) for key, each in values.items()}


def _torch(tensors: dict[str, Tensor], name: Any) -> torch.Tensor:
    if name not in tensors:
        raise IotwinError(f"the checkpoint lacks the tensor {name!r}")
    _, dtype, shape, data = tensors[name]
    if not data.size:
        return torch.empty(shape, dtype=getattr(torch, dtype))
    return torch.from_numpy(data).view(getattr(torch, dtype)).reshape(shape)


class Generators:
    """The random generators of this process that a job may draw from: Python's, numpy's, torch's on every device."""

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        numpy_state: Any = np.random.get_state(legacy=False)
        return {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state(), "devices": devices}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them; those of devices that are not there are left out."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])
        torch.set_rng_state(state["torch"])
        if torch.cuda.is_available():
            for device, device_state in enumerate(state["devices"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(device_state, device)


def weights_sha256(models: Iterable[nn.Module]) -> str:
    """Return the digest of the names, types, shapes and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for model in models:
        for name, value in model.state_dict().items():
            tensor = _as_tensor(name, value)
            digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
            digest.update(tensor.data.data)
    return digest.hexdigest()
