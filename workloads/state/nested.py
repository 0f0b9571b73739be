"""A job's state as tensors and plain values, and back, whatever framework its tensors are of; of numpy's arrays here."""

import hashlib
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from common.errors import IotwinError
from common.tensor_file import Tensor

TENSOR, ARRAY = "$tensor", "$array"
_TUPLE, _ITEMS = "$tuple", "$items"
_MARKS = (TENSOR, ARRAY, _TUPLE, _ITEMS)
_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple))  # no leaf is one of these
# Of a value and the name it is to have: its mark and tensor, or None where it is no tensor; and the value of those two again.
Leaf = Callable[[str, Any], tuple[str, Tensor] | None]
Restored = Callable[[str, Tensor], Any]


def flatten_by(leaf: Leaf, state: Any) -> tuple[list[Tensor], Any]:
    """Return the tensors in nested dicts, lists and tuples, by `leaf`, and what is around them as JSON can hold it.

    TypeError for a value that is neither.
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
    """Return what `flatten_by` was given; IotwinError when a tensor is missing."""
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


class Generators:
    """The random generators that any job may draw from: Python's and numpy's."""

    def state_dict(self) -> dict[str, Any]:
        """Return their states."""
        numpy_state: Any = np.random.get_state(legacy=False)
        return {"python": random.getstate(), "numpy": numpy_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set them."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])


@dataclass(frozen=True)
class Framework:
    """What of a job's state is its framework's: versions to record, tensors to and from files, random generators."""

    versions: dict[str, str]
    flatten: Callable[[Any], tuple[list[Tensor], Any]]
    unflatten: Callable[[Any, dict[str, Tensor]], Any]
    generators: Generators


def flatten(state: Any) -> tuple[list[Tensor], Any]:
    """Do as `flatten_by` with numpy's arrays, which are not copied."""
    return flatten_by(lambda name, value: (ARRAY, array_tensor(name, value)) if isinstance(value, np.ndarray) else None, state)


def unflatten(values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return what `flatten` was given."""
    return unflatten_by(lambda _, tensor: tensor.data.view(tensor.dtype).reshape(tensor.shape), values, tensors)


def array_tensor(name: str, array: np.ndarray) -> Tensor:
    """Return an array as a tensor to write."""
    return Tensor(name, str(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return the digest of the names, types, shapes and bytes of `tensors`, in their order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
        digest.update(tensor.data.data)
    return digest.hexdigest()
