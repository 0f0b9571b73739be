"""Splits a job's state into tensors and plain values and joins them again, for tensors of any framework, and numpy's here."""

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import Tensor

TENSOR, ARRAY = "$tensor", "$array"
_TUPLE, _ITEMS = "$tuple", "$items"
_MARKS = (TENSOR, ARRAY, _TUPLE, _ITEMS)
_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple))  # types that are never leaves
# Leaf(name, value) returns (mark, tensor), None if the value is not a tensor. Restored(mark, tensor) returns the value.
Leaf = Callable[[str, Any], tuple[str, Tensor] | None]
Restored = Callable[[str, Tensor], Any]


def flatten_by(leaf: Leaf, state: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors of nested dicts, lists and tuples, which `leaf` converts, and the remaining structure as JSON values.

    Raises TypeError for a value that is neither a tensor nor plain.
    """
    tensors: list[Tensor] = []

    def items(pairs: Iterable[tuple[Any, Any]], path: str) -> list[tuple[Any, Any]]:
        prefix = f"{path}." if path else ""
        return [(key, each if type(each) in _PLAIN else visit(each, f"{prefix}{key}")) for key, each in pairs]

    def visit(value: Any, path: str) -> Any:
        kind = type(value)
        if kind in _PLAIN:
            return value
        if kind not in _CONTAINERS and (found := leaf(path, value)):
            mark, tensor = found
            tensors.append(tensor)
            return {mark: path}
        if isinstance(value, dict):
            inner = items(value.items(), path)
            plain = all(isinstance(key, str) and key not in _MARKS for key, _ in inner)
            return dict(inner) if plain else {_ITEMS: [list(pair) for pair in inner]}
        if isinstance(value, (tuple, list)):
            plain = _PLAIN.issuperset(map(type, value))  # Python's generator has 625 numbers
            content = list(value) if plain else [each for _, each in items(enumerate(value), path)]
            return {_TUPLE: content} if isinstance(value, tuple) else content
        if isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{path or 'the state'} is a {kind.__name__}, which a checkpoint cannot hold")

    return tensors, visit(state, "")


def unflatten_by(restored: Restored, values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state that `flatten_by` was called with. Raises IotwinError if a tensor is missing."""
    if isinstance(values, list):
        return [unflatten_by(restored, each, tensors) for each in values]
    if not isinstance(values, dict):
        return values
    if len(values) == 1:
        [(mark, inner)] = values.items()
        if mark in (TENSOR, ARRAY):
            if inner not in tensors:
                raise IotwinError(f"the checkpoint lacks the tensor {inner!r}")
            return restored(mark, tensors[inner])
        if mark == _TUPLE:
            return tuple(unflatten_by(restored, each, tensors) for each in inner)
        if mark == _ITEMS:
            return {key: unflatten_by(restored, each, tensors) for key, each in inner}
    return {key: unflatten_by(restored, each, tensors) for key, each in values.items()}


class NumpyGenerators:
    """The global random generators of Python and numpy."""

    def state_dict(self) -> dict[str, Any]:
        """Return the generators' states."""
        numpy_state: Any = np.random.get_state(legacy=False)
        return {"python": random.getstate(), "numpy": numpy_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])


@dataclass(frozen=True)
class Framework:
    """A framework's part in saving state: versions to record, conversion of tensors, random generators."""

    versions: dict[str, str]
    flatten: Callable[[Any], tuple[list[Tensor], Any]]
    unflatten: Callable[[Any, dict[str, Tensor]], Any]
    generators: NumpyGenerators


def flatten(state: Any) -> tuple[list[Tensor], Any]:
    """Return `flatten_by` for numpy arrays, which are not copied."""
    return flatten_by(lambda name, value: (ARRAY, array_tensor(name, value)) if isinstance(value, np.ndarray) else None, state)


def unflatten(values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state that `flatten` was called with."""
    return unflatten_by(lambda _, tensor: tensor.data.view(tensor.dtype).reshape(tensor.shape), values, tensors)


def array_tensor(name: str, array: np.ndarray) -> Tensor:
    """Return an array as a tensor of a file."""
    return Tensor(name, str(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of `tensors`, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
        digest.update(tensor.data.data)
    return digest.hexdigest()
