"""Grey baseline JPEG (ITU-T T.81) whose coefficients are the content, one byte each, instead of pixels encoded with a loss.

A picture of noise costs an encoder more time than anything else here takes, for a file whose size is not known beforehand.
This file's own Huffman table has codes of 1 to 7 bits (n - 1 ones and a zero) for coefficients of 8 - n further bits. So each
coefficient takes a byte, and any byte below 0xFE is a coefficient. Half of them use 7 bits, a quarter 6 and so on, much as in
real pictures. The content goes into the file unchanged and stays incompressible; a decoder shows noise like random pixels.
"""

import struct

import numpy as np
from numpy.typing import NDArray

BLOCK_SIDE = 8
BLOCK_BYTES = BLOCK_SIDE * BLOCK_SIDE  # a byte per coefficient
LONGEST_SIDE = 65500  # of libjpeg, a little under the format's own
END = b"\xff\xd9"
_TOO_LARGE = 0xFE
_SIZES = range(7, 0, -1)  # bits after the code, by the code's length


def padded_pixels(height: int, width: int) -> int:
    """Return the pixels of the whole blocks that cover a picture: the bytes of its coefficients."""
    return -(-height // BLOCK_SIDE) * -(-width // BLOCK_SIDE) * BLOCK_BYTES


def header(height: int, width: int) -> bytes:
    """Return what comes before the coefficients of a picture."""
    codes = bytes(length <= len(_SIZES) for length in range(1, 17)) + bytes(_SIZES)  # codes of every length, what they mean
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"),
            _segment(0xDB, b"\0" + b"\x01" * BLOCK_BYTES),  # quantization: none
            _segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\0"),
            _segment(0xC4, b"\x00" + codes),  # of mean values
            _segment(0xC4, b"\x10" + codes),  # of the other coefficients
            _segment(0xDA, b"\x01\x01\0\0\x3f\0"),
        ]
    )


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def _opposites() -> NDArray[np.uint8]:
    """Return, for every byte that is a coefficient, the one of the opposite sign: the bits after its code inverted."""
    values = np.arange(256)
    leading_ones = np.sum([values >> (8 - count) == (1 << count) - 1 for count in range(1, 8)], axis=0)
    opposites: NDArray[np.uint8] = (values ^ ((1 << np.maximum(7 - leading_ones, 0)) - 1)).astype(np.uint8)
    return opposites


_OPPOSITE = _opposites()


def coefficients(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn whole blocks of content into coefficients, in place.

    A block's first is the difference of its mean from the last block's; every other block takes it back, lest the sum run away.
    """
    # 0xFE and 0xFF are no coefficients; 0xFC and 0xFD are.
    too_large = (content >= _TOO_LARGE).view(np.uint8)
    content -= too_large
    content -= too_large
    content[BLOCK_BYTES :: 2 * BLOCK_BYTES] = _OPPOSITE[content[: len(content) - BLOCK_BYTES : 2 * BLOCK_BYTES]]
    return content
