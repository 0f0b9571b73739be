"""Encodes values of a script, such as counters, histories and nested states, for checkpoints, and decodes them exactly."""

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.saving.sharded_tensors import is_sharded, joined, layout, local_part

_MARK = "$plain"  # a dict with this key encodes a value that JSON lacks
_SHARD = "$shard"  # the key of a sharded tensor
_ATOMS = (bool, int, float, str, type(None), bytes, complex, np.generic)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_MOST_DEPTH = 12
_MOST_CONTAINERS = 1000
_EXACT = 1 << 63  # not every JSON reader reads larger integers exactly


def is_plain(value: Any, depth: int = 0) -> bool:
    """Return whether a value consists only of numbers, texts, bytes, None and containers of them."""
    if isinstance(value, _ATOMS):
        return not (isinstance(value, np.generic) and value.dtype == object)
    if type(value) not in (*_CONTAINERS, Counter, OrderedDict, defaultdict) or depth > _MOST_DEPTH:
        return False
    if isinstance(value, dict):
        return all(is_plain(each, depth + 1) for pair in value.items() for each in pair)
    return all(is_plain(each, depth + 1) for each in value)


def has_containers(value: Any) -> bool:
    """Return whether a plain value contains mutable containers, which other objects may refer to as well.

    False for a value with more than 1000 containers, which is taken for data.
    """
    return 0 < sum(1 for _ in islice(_changeable_inside(value), _MOST_CONTAINERS + 1)) <= _MOST_CONTAINERS


def _changeable_inside(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict | deque):
        for each in value.values() if isinstance(value, dict) else value:
            if isinstance(each, list | dict | set | deque):
                yield each
            yield from _changeable_inside(each)


def encode(value: Any, unsaved: dict[str, str] | None = None, path: str = "") -> Any:
    """Return a plain value as JSON values. Tensors and arrays in nested dicts, lists and tuples remain as they are.

    If `unsaved` is given, entries of dicts that cannot be saved are left out, and `unsaved` gets, by path, the reason.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic):
        return {_MARK: "scalar", "type": value.dtype.str, "bytes": value.tobytes().hex()}
    if isinstance(value, int):
        return value if -_EXACT < value < _EXACT else {_MARK: "int", "hex": hex(value)}
    if isinstance(value, float):
        return value if math.isfinite(value) else {_MARK: "float", "bytes": struct.pack("<d", value).hex()}
    if isinstance(value, bytes):
        return {_MARK: "bytes", "hex": value.hex()}
    if isinstance(value, complex):
        return {_MARK: "complex", "parts": [encode(value.real), encode(value.imag)]}
    if is_sharded(value):
        return {_SHARD: [local_part(value), list(value.shape), list(value.stride()), layout(value)]}
    if isinstance(value, torch.Tensor | np.ndarray):
        return value
    if isinstance(value, dict):
        entries = ((key, each, f"{path}[{key!r}]") for key, each in value.items())
        kept = [[encode(key), encode(each, unsaved, at)] for key, each, at in entries if _can_be_saved(each, unsaved, at)]
        return {_MARK: "dict", "items": kept}
    inside = [encode(each, unsaved, f"{path}[{index}]") for index, each in enumerate(value)]
    if isinstance(value, list):
        return inside
    return {_MARK: next(name for name, kind in _SEQUENCES.items() if isinstance(value, kind)), "items": inside}


def _can_be_saved(value: Any, unsaved: dict[str, str] | None, path: str) -> bool:
    if unsaved is None or isinstance(value, torch.Tensor | np.ndarray | dict | list | tuple) or is_plain(value):
        return True
    unsaved[path] = f"a {type(value).__name__} cannot be saved"
    return False


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def decode(value: Any, held: Iterable[Any] = ()) -> Any:
    """Return the value that was encoded as `value`. `held`: tensors of this process, which sharded tensors need (`joined`).

    Raises IotwinError if `value` is no result of `encode`.
    """
    if isinstance(value, list):
        return [decode(each, held) for each in value]
    if not isinstance(value, dict):
        return value
    try:
        if _SHARD in value:
            part, shape, stride, divided = value[_SHARD]
            return joined(part, shape, stride, divided, held)
        kind = value[_MARK]
        if kind == "dict":
            return {decode(key): decode(each, held) for key, each in value["items"]}
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](decode(each, held) for each in value["items"])
        return _DECODED[kind](value)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise IotwinError(f"the checkpoint holds a value that is none: {error!r}") from None


_DECODED: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda value: np.frombuffer(bytes.fromhex(value["bytes"]), value["type"])[0],
    "int": lambda value: int(value["hex"], 16),
    "float": lambda value: struct.unpack("<d", bytes.fromhex(value["bytes"]))[0],
    "bytes": lambda value: bytes.fromhex(value["hex"]),
    "complex": lambda value: complex(*map(decode, value["parts"])),
}


def replace_content(held: Any, value: Any) -> bool:
    """Replace the content of `held` by that of `value`. Return False if `held` is no list, dict, set or deque, else True."""
    if isinstance(held, list) and isinstance(value, list):
        held[:] = value
    elif isinstance(held, dict) and isinstance(value, dict):
        held.clear()
        held.update(value)
    elif isinstance(held, set) and isinstance(value, set):
        held.clear()
        held |= value
    elif isinstance(held, deque) and isinstance(value, deque):
        held.clear()
        held.extend(value)
    else:
        return False
    return True
