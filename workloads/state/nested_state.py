"""Splits a job's state into tensors and plain values, and joins them again. Each framework passes its own tensor conversion."""

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
_MARKS = (TENSOR, ARRAY, _TUPLE, _ITEMS)  # keys that mark a dict as a tensor, an array, a tuple, or a dict of other keys
_PLAIN = frozenset((bool, int, float, str, type(None)))
_CONTAINERS = frozenset((dict, OrderedDict, list, tuple))  # types of values for which `leaf` is not called
# A Leaf converts a (name, value) of the state to (TENSOR or ARRAY, the tensor to store), or to None if the value is no tensor or
# array. A Restored is the inverse function.
Leaf = Callable[[str, Any], tuple[str, Tensor] | None]
Restored = Callable[[str, Tensor], Any]


def flatten_by(leaf: Leaf, state: Any) -> tuple[list[Tensor], Any]:
    """Split a state of nested dicts, lists and tuples. Return (its tensors, converted by `leaf`; the rest as JSON values).

    Raises TypeError if a value is neither a tensor nor a JSON value.
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
            # a fast path for long lists of plain values, such as the 625 numbers of a generator
            plain = _PLAIN.issuperset(map(type, value))
            content = list(value) if plain else [each for _, each in items(enumerate(value), path)]
            return {_TUPLE: content} if isinstance(value, tuple) else content
        if isinstance(value, (bool, int, float, str)):
            return value
        raise TypeError(f"{path or 'the state'} is a {kind.__name__}, which a checkpoint cannot hold")

    return tensors, visit(state, "")


def unflatten_by(restored: Restored, values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state whose parts `flatten_by` returned. Raises IotwinError if a tensor is missing."""
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
        """Return the states of the global random generators."""
        numpy_state: Any = np.random.get_state(legacy=False)
        return {"python": random.getstate(), "numpy": numpy_state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Set the generators to the states that `state_dict` returned."""
        random.setstate(state["python"])
        np.random.set_state(state["numpy"])


@dataclass(frozen=True)
class Framework:
    """What the saving of a state needs from a framework: versions to record, conversion of tensors, random generators."""

    versions: dict[str, str]
    flatten: Callable[[Any], tuple[list[Tensor], Any]]
    unflatten: Callable[[Any, dict[str, Tensor]], Any]
    generators: NumpyGenerators


def flatten(state: Any) -> tuple[list[Tensor], Any]:
    """Split, as `flatten_by` does, a state whose only tensors are numpy arrays. Arrays are not copied."""
    return flatten_by(lambda name, value: (ARRAY, array_tensor(name, value)) if isinstance(value, np.ndarray) else None, state)


def unflatten(values: Any, tensors: dict[str, Tensor]) -> Any:
    """Return the state whose parts `flatten` returned."""
    return unflatten_by(lambda _, tensor: tensor.data.view(tensor.dtype).reshape(tensor.shape), values, tensors)


def array_tensor(name: str, array: np.ndarray) -> Tensor:
    """Return an array as a tensor of a checkpoint file."""
    return Tensor(name, str(array.dtype), array.shape, np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def digest_of(tensors: Iterable[Tensor]) -> str:
    """Return the SHA-256 of the names, types, shapes and bytes of `tensors`, in order."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(f"{tensor.name} {tensor.dtype} {tensor.shape} ".encode())
        digest.update(tensor.data.data)
    return digest.hexdigest()
