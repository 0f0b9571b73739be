"""CRC-32C (Castagnoli) of many buffers at once, in numpy: TFRecord needs it, and Python's own crc32 is another polynomial.

A CRC is linear over GF(2) apart from its start value, which gives three facts used here (Warren, Hacker's Delight, chapter 14;
RFC 3720 names the polynomial): leading zeros do not change a CRC that starts at zero; starting at all ones only adds a term that
depends on the length; and the CRC of joined buffers follows from the CRCs of the parts.
"""

from functools import cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

_POLYNOMIAL = 0x82F63B78  # reflected
_ONES = 0xFFFFFFFF
_MASK_DELTA = 0xA282EAD8  # tensorflow/core/lib/hash/crc32c.h: TFRecord stores rotated and shifted CRCs
_LANE_BYTES = 1 << 8  # long buffers are cut into lanes of this length that advance side by side
_LANES_EACH = 16  # and each of many short buffers into so many
_BLOCK_BYTES = 1 << 20  # as much as fits a core's cache


@cache
def _table() -> NDArray[np.int64]:
    """Return what two bytes (65 536 values) contribute to the CRC state that follows them."""
    state = np.arange(1 << 16, dtype=np.int64)
    for _ in range(16):
        state = (state >> 1) ^ np.where(state & 1, _POLYNOMIAL, 0)
    return state


def _lanes(content: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the CRC, started at zero and not inverted, of every row of a contiguous (count, even length) matrix."""
    table = _table()
    state, index, term = (np.zeros(len(content), np.int64) for _ in range(3))
    for pair in content.view("<u2").T:
        index[:] = pair
        index ^= state
        index &= 0xFFFF
        table.take(index, out=term, mode="clip")
        state >>= 16
        state ^= term
    return state


# A linear map of 32-bit states: its image of every value of each of the four bytes, shape (4, 256).
_Map = NDArray[np.int64]


def _apply(step: _Map, states: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the image of every state."""
    low = step[0].take(states & 255) ^ step[1].take(states >> 8 & 255)
    image: NDArray[np.int64] = low ^ step[2].take(states >> 16 & 255) ^ step[3].take(states >> 24)
    return image


@cache
def _zeros_doubled(power: int) -> _Map:
    """Return the map from a state to that after 2**power zero bytes."""
    if power:
        half = _zeros_doubled(power - 1)
        return _apply(half, half)
    states = np.arange(256, dtype=np.int64) << (8 * np.arange(4, dtype=np.int64)[:, None])
    for _ in range(8):
        states = (states >> 1) ^ np.where(states & 1, _POLYNOMIAL, 0)
    return states


@cache
def _start_term(length: int) -> int:
    """Return what starting at all ones adds to the CRC state after `length` bytes."""
    state = np.array([_ONES])
    for power in range(length.bit_length()):
        if length >> power & 1:
            state = _apply(_zeros_doubled(power), state)
    return int(state[0])


@cache
def _zeros(length: int) -> _Map:
    """Return the map from a state to that after `length` zero bytes."""
    states = np.arange(256, dtype=np.int64) << (8 * np.arange(4, dtype=np.int64)[:, None])
    for power in range(length.bit_length()):
        if length >> power & 1:
            states = _apply(_zeros_doubled(power), states)
    return states


def _joined(rows: NDArray[np.uint8], lanes: int) -> NDArray[np.int64]:
    """Return the zero-started CRCs of the rows of a matrix, cut into `lanes` (a power of two) that advance side by side."""
    lane_bytes = rows.shape[1] // lanes
    parts = _lanes(rows.reshape(-1, lane_bytes)).reshape(-1, lanes)
    step = _zeros(lane_bytes)
    while parts.shape[1] > 1:
        parts = _apply(step, parts[:, ::2]) ^ parts[:, 1::2]
        step = _apply(step, step)
    return parts[:, 0]


class Crc32c:
    """The CRC-32C of bytes that come in pieces."""

    def __init__(self) -> None:
        self._state = np.array([_ONES])

    def update(self, data: bytes | memoryview) -> None:
        """Add `data` to what was seen so far."""
        content = np.frombuffer(data, np.uint8)
        for start in range(0, len(content), _BLOCK_BYTES):
            self._add(content[start : start + _BLOCK_BYTES])

    def _add(self, content: NDArray[np.uint8]) -> None:
        lanes = 1 << max(0, -(-len(content) // _LANE_BYTES) - 1).bit_length()
        padded = np.zeros((1, lanes * _LANE_BYTES), np.uint8)
        padded[0, padded.size - len(content) :] = content
        self._state = _apply(_zeros(len(content)), self._state) ^ _joined(padded, lanes)

    def value(self) -> int:
        """Return the CRC of what was seen so far."""
        return int(self._state[0]) ^ _ONES


def crc32c_each(content: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.uint32]:
    """Return the CRC-32C of each of many runs of `content`, of at most some kilobytes each."""
    unit = 2 * _LANES_EACH
    width = -(-int(lengths.max()) // unit) * unit
    # Every run is copied to the right end of a row, and what lies before it there is cleared.
    padded = np.concatenate([np.zeros(width, np.uint8), content])
    rows = sliding_window_view(padded, width)[starts + lengths]
    rows *= np.arange(width) >= width - lengths[:, None]
    known, where = np.unique(lengths, return_inverse=True)
    terms = np.array([_start_term(length) for length in known.tolist()], np.int64)
    return (_joined(rows, _LANES_EACH) ^ terms[where] ^ _ONES).astype(np.uint32)


def masked(crc: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Return CRCs as TFRecord stores them."""
    wide = crc.astype(np.uint64)
    return (((wide >> np.uint64(15)) | (wide << np.uint64(17))) + np.uint64(_MASK_DELTA)).astype(np.uint32)
