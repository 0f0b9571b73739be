"""Encodes nested dicts, lists and tuples of tensors, arrays and plain values for checkpoints, and decodes them."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from iotwin.workloads.detrain.saving.plain_values import decode, encode, is_plain
from iotwin.workloads.detrain.saving.sharded_tensors import is_sharded, joined, layout, local_part

_ITEMS, _LIST, _TUPLE, _SHARD = "$items", "$list", "$tuple", "$shard"


def encode_nested(value: Any, unsaved: dict[str, str], path: str = "") -> Any:
    """Return a state with its plain values encoded. Entries that cannot be saved are left out; `unsaved` gets path and type."""
    if is_sharded(value):
        return {_SHARD: [local_part(value), list(value.shape), list(value.stride()), layout(value)]}
    if isinstance(value, torch.Tensor | np.ndarray):
        return value
    if is_plain(value):
        return encode(value)
    if isinstance(value, dict):
        items = ((key, each, f"{path}[{key!r}]") for key, each in value.items())
        kept = [
            [encode(key), encode_nested(each, unsaved, below)]
            for key, each, below in items
            if _can_be_saved(each, unsaved, below)
        ]
        return {_ITEMS: kept}
    inside = [encode_nested(each, unsaved, f"{path}[{index}]") for index, each in enumerate(value)]
    return {_LIST if isinstance(value, list) else _TUPLE: inside}


def _can_be_saved(value: Any, unsaved: dict[str, str], path: str) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray | dict | list | tuple) or is_plain(value):
        return True
    unsaved[path] = f"a {type(value).__name__} cannot be saved"
    return False


def decode_nested(value: Any, held: Iterable[Any] = ()) -> Any:
    """Return the state that `encode_nested` was called with. `held`: tensors of this process, as sharded ones need (`joined`).

    Raises IotwinError if `value` is not its result.
    """
    if isinstance(value, dict) and len(value) == 1:
        [(mark, content)] = value.items()
        if mark == _ITEMS:
            return {decode(key): decode_nested(each, held) for key, each in content}
        if mark == _SHARD:
            part, shape, stride, divided = content
            return joined(part, shape, stride, divided, held)
        if mark in (_LIST, _TUPLE):
            found = [decode_nested(each, held) for each in content]
            return found if mark == _LIST else tuple(found)
    return value if isinstance(value, torch.Tensor | np.ndarray) else decode(value)
