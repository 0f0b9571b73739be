"""Positions of iterators that cannot be restored, such as generators. They show whether training or a replay moved these."""

import io
import json
import types
from collections.abc import Iterator
from typing import Any

from iotwin.workloads.detrain.saving.plain_values import encode, is_plain

_MOST_DEPTH = 5  # iterators in iterators


def position_of(iterator: Any) -> str:
    """Return an iterator's position as text, as far as Python shows it. Different positions may have the same text."""
    return json.dumps(_position(iterator, 0))


def _position(value: Any, depth: int) -> Any:
    if is_plain(value):
        return encode(value)
    if isinstance(value, types.GeneratorType):
        frame = value.gi_frame
        if frame is None:
            return "ended"
        plain = {name: encode(each) for name, each in frame.f_locals.items() if is_plain(each)}
        return [frame.f_lasti, plain, _position(value.gi_yieldfrom, depth + 1) if depth < _MOST_DEPTH else None]
    if isinstance(value, tuple | list) and depth < _MOST_DEPTH:
        return [_position(each, depth + 1) for each in value]
    if isinstance(value, io.IOBase):
        return value.tell() if value.seekable() else None
    if isinstance(value, Iterator) and depth < _MOST_DEPTH:
        try:
            made = value.__reduce__()
        except (TypeError, ValueError):
            made = ()
        return [type(value).__name__, _position(made[1:] if isinstance(made, tuple) else (), depth + 1)]
    return type(value).__name__
