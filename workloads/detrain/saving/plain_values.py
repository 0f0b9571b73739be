"""Encodes plain values of a script, such as counters and histories, as JSON values for checkpoints, and decodes them exactly."""

import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError

_MARK = "$plain"  # a dict with this key encodes a value that JSON lacks
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

    False for more than 1000 containers: these are data.
    """
    return 0 < sum(1 for _ in islice(_changeable_inside(value), _MOST_CONTAINERS + 1)) <= _MOST_CONTAINERS


def _changeable_inside(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict | deque):
        for each in value.values() if isinstance(value, dict) else value:
            if isinstance(each, list | dict | set | deque):
                yield each
            yield from _changeable_inside(each)


def encode(value: Any) -> Any:
    """Return a plain value as JSON values."""
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
    if isinstance(value, dict):
        return {_MARK: "dict", "items": [[encode(key), encode(each)] for key, each in value.items()]}
    if isinstance(value, list):
        return [encode(each) for each in value]
    name = next(name for name, kind in _SEQUENCES.items() if isinstance(value, kind))
    return {_MARK: name, "items": [encode(each) for each in value]}


_SEQUENCES = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": deque}


def decode(value: Any) -> Any:
    """Return the plain value that `encode` was called with. Raises IotwinError if `value` is not its result."""
    if isinstance(value, list):
        return [decode(each) for each in value]
    if not isinstance(value, dict):
        return value
    try:
        kind = value[_MARK]
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](decode(each) for each in value["items"])
        return _DECODED[kind](value)
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise IotwinError(f"the checkpoint holds a value that is none: {error!r}") from None


_DECODED: dict[str, Callable[[Any], Any]] = {
    "scalar": lambda value: np.frombuffer(bytes.fromhex(value["bytes"]), value["type"])[0],
    "int": lambda value: int(value["hex"], 16),
    "float": lambda value: struct.unpack("<d", bytes.fromhex(value["bytes"]))[0],
    "bytes": lambda value: bytes.fromhex(value["hex"]),
    "complex": lambda value: complex(*map(decode, value["parts"])),
    "dict": lambda value: {decode(key): decode(each) for key, each in value["items"]},
}


def replace_content(held: Any, value: Any) -> bool:
    """Replace the content of `held` by that of `value` in place, and return True; False if it is no list, dict, set or deque."""
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
