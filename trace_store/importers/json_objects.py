"""Read a long JSON array of objects in pieces, since the profiles that contain such arrays may be larger than memory."""

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

_PIECE_BYTES = 1 << 22
_QUOTE, _BACKSLASH, _OPEN, _CLOSE, _CLOSE_ARRAY = (ord(character) for character in '"\\{}]')


def object_pieces(file: BinaryIO, piece_bytes: int = _PIECE_BYTES) -> Iterator[bytes]:
    """Yield the objects of a JSON array in pieces, each a JSON array; `file` must be positioned after the opening bracket.

    A cut-off object at the end of the file is left out. NumPy finds brackets and quotes, so that no Python runs per byte.
    """
    rest = b""
    while piece := file.read(piece_bytes):
        content = rest + piece
        end, is_last = _end_of_last_object(content)
        first = content.find(b"{")
        if end > first >= 0:
            yield b"[" + content[first:end] + b"]"
        if is_last:
            return
        rest = content[end:]


def _end_of_last_object(content: bytes) -> tuple[int, bool]:
    """Return (offset after the last whole object in `content`, 0 if none; True if the array ends in `content`)."""
    data = np.frombuffer(content, np.uint8)
    outside_strings = ~_within_strings(data)
    brackets = np.flatnonzero(((data == _OPEN) | (data == _CLOSE)) & outside_strings)
    depth = np.cumsum(np.where(data[brackets] == _OPEN, 1, -1))
    # The array ends at the first closing square bracket outside of all objects.
    square = np.flatnonzero((data == _CLOSE_ARRAY) & outside_strings)
    depth_there = np.concatenate([[0], depth])[np.searchsorted(brackets, square)]
    ends = square[depth_there == 0]
    array_end = int(ends[0]) if len(ends) else len(content)
    whole = brackets[(depth == 0) & (brackets < array_end)]
    return (int(whole[-1]) + 1 if len(whole) else 0), bool(len(ends))


def _within_strings(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return a mask of the bytes within JSON strings. A quote after an odd number of backslashes does not bound a string."""
    quotes = np.flatnonzero(data == _QUOTE)
    other = np.flatnonzero(data != _BACKSLASH)
    # The bytes between a quote and the last byte before it that is no backslash are all backslashes.
    before = np.searchsorted(other, quotes) - 1
    last_other = np.where(before >= 0, other[np.maximum(before, 0)], -1)
    real = quotes[(quotes - last_other - 1) % 2 == 0]
    toggles = np.zeros(len(data), np.int8)
    toggles[real] = 1
    within: NDArray[np.bool_] = np.cumsum(toggles, dtype=np.int64) % 2 == 1
    return within
