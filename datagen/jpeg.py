"""Make grey baseline JPEGs (ITU-T T.81) from random bytes, each of which is one coefficient, instead of encoding pixels.

Encoding a picture of noise would take much longer, and the size of the file would not be known beforehand. The Huffman table of
the files has codes of n = 1 to 7 bits (n - 1 ones and a zero) for coefficients of 8 - n further bits. So each coefficient takes
one byte, and every byte below 0xFE is a valid coefficient. Half of the coefficients have 7 bits, a quarter 6 and so on, much as
in real pictures. The content remains incompressible, and a decoder shows noise.
"""

import struct

import numpy as np
from numpy.typing import NDArray

BLOCK_SIDE = 8
BLOCK_BYTES = BLOCK_SIDE * BLOCK_SIDE  # one byte per coefficient
LONGEST_SIDE = 65500  # libjpeg's limit in pixels, slightly below the format's limit
END = b"\xff\xd9"
_TOO_LARGE = 0xFE
_SIZES = range(7, 0, -1)  # bits that follow a code of 1, 2, ... 7 bits


def padded_pixels(height: int, width: int) -> int:
    """Return the number of pixels in the blocks that cover a picture, which is also the bytes that its coefficients take."""
    return -(-height // BLOCK_SIDE) * -(-width // BLOCK_SIDE) * BLOCK_BYTES


def header(height: int, width: int) -> bytes:
    """Return the bytes that precede the coefficients in the file of a picture of `height` by `width` pixels."""
    codes = bytes(length <= len(_SIZES) for length in range(1, 17)) + bytes(_SIZES)  # number of codes by length, their meanings
    return b"".join(
        [
            b"\xff\xd8",
            _segment(0xE0, b"JFIF\0\x01\x01\0\0\x01\0\x01\0\0"),
            _segment(0xDB, b"\0" + b"\x01" * BLOCK_BYTES),  # no quantization
            _segment(0xC0, struct.pack(">BHHB", 8, height, width, 1) + b"\x01\x11\0"),
            _segment(0xC4, b"\x00" + codes),  # Huffman table of mean values
            _segment(0xC4, b"\x10" + codes),  # Huffman table of the other coefficients
            _segment(0xDA, b"\x01\x01\0\0\x3f\0"),
        ]
    )


def _segment(marker: int, body: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, marker, 2 + len(body)) + body


def _opposites() -> NDArray[np.uint8]:
    """Return a table from each coefficient, a byte, to the coefficient of opposite sign: bits after the code are inverted."""
    values = np.arange(256)
    leading_ones = np.sum([values >> (8 - count) == (1 << count) - 1 for count in range(1, 8)], axis=0)
    opposites: NDArray[np.uint8] = (values ^ ((1 << np.maximum(7 - leading_ones, 0)) - 1)).astype(np.uint8)
    return opposites


_OPPOSITE = _opposites()


def coefficients(content: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Turn `content`, whole blocks of random bytes, into coefficients in place, and return it.

    A block's first coefficient is its mean minus the previous block's mean. In every second block, it is the opposite of the
    previous block's first coefficient, so that means do not leave their range.
    """
    # 0xFE and 0xFF are not coefficients. Subtracting 2 turns them into coefficients.
    too_large = (content >= _TOO_LARGE).view(np.uint8)
    content -= too_large
    content -= too_large
    content[BLOCK_BYTES :: 2 * BLOCK_BYTES] = _OPPOSITE[content[: len(content) - BLOCK_BYTES : 2 * BLOCK_BYTES]]
    return content
