"""Write labelled images: JPEGs of incompressible noise from which a small network can learn the classes.

A picture is divided into 4 by 4 fields. In each field, the mean of every other 8 by 8 block is shifted up or down by a few grey
levels; the class determines the direction (see `datagen.jpeg`).
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen import jpeg
from iotwin.datagen.data_set_files import Piece, PieceWriter
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.datagen.random_numbers import CONTENT, NOISE, bulk_stream, random_words

_FIELDS = 4
_UP = 0x40  # bytes below 0x80 are the largest coefficients; this bit makes one raise its block's mean


def fields(seed: int, number: int) -> NDArray[np.uint8]:
    """Return 1 for each field that is brighter in pictures of class `number`, 0 for the others; shape (rows, columns)."""
    bits = np.unpackbits(random_words(seed, number, CONTENT, 1).view(np.uint8))
    return bits[: _FIELDS * _FIELDS].reshape(_FIELDS, _FIELDS)


def picture(layout: ImagenetLayout, samples: int, seed: int, image: int) -> bytes:
    """Return the bytes of the JPEG file of the image at index `image`."""
    height, width = layout.shape(seed, image)
    pixels = jpeg.padded_pixels(height, width)
    content = bulk_stream(seed, image, NOISE).random_raw(-(-pixels // 8)).view(np.uint8)[:pixels]
    rows, columns = height // jpeg.BLOCK_SIDE, width // jpeg.BLOCK_SIDE
    brighter = fields(seed, layout.class_of(samples, image))
    of_blocks = brighter[np.ix_(np.arange(rows) * _FIELDS // rows, np.arange(columns) * _FIELDS // columns)].reshape(-1)
    means = content[:: jpeg.BLOCK_BYTES]
    means[::2] = (means[::2] & (_UP - 1)) | of_blocks[::2] * _UP
    return jpeg.header(height, width) + jpeg.coefficients(content).tobytes() + jpeg.END


def write_images(
    layout: ImagenetLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the images that belong to unit `unit` under temporary names, and return their pieces."""
    pieces = []
    for image in layout.unit_images(samples, unit):
        with PieceWriter(directory, layout.name(samples, image), written) as file:
            file.write(picture(layout, samples, seed, image))
            pieces.append(file.piece())
    return pieces
