"""Write JPEG and PNG files with one grey image each."""

import struct
import zlib
from collections.abc import Callable

import numpy as np

from iotwin.datagen import jpeg
from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.formats.file_to_write import BLOCK_BYTES, File


def _image_shape(file: File) -> tuple[int, int]:
    height, width = file.shape if len(file.shape) == 2 else (1, *file.shape)
    return height, width


def write_jpeg(file: File) -> list[Piece]:
    """Write a grey baseline JPEG whose coefficients are the file's random content."""
    height, width = _image_shape(file)
    left = jpeg.padded_pixels(height, width)
    with file.open(file.name) as sink:
        sink.write(jpeg.header(height, width))
        while left:
            count = min(BLOCK_BYTES, left)
            sink.write(jpeg.coefficients(file.take(count)).data)
            left -= count
        sink.write(jpeg.END)
        return [sink.piece()]


def write_png(file: File) -> list[Piece]:
    """Write an 8-bit grey PNG (RFC 2083). Content with full entropy is not compressed, as it would not shrink."""
    height, width = _image_shape(file)
    deflate = zlib.compressobj(0 if file.layout.entropy == 1 else 1)
    each = max(1, BLOCK_BYTES // 2 // width)  # lines of half a block, as deflate returns another half
    with file.open(file.name) as sink:
        sink.write(b"\x89PNG\r\n\x1a\n")
        _png_chunk(sink.write, b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        for first in range(0, height, each):
            count = min(each, height - first)
            lines = np.zeros((count, width + 1), np.uint8)  # each line begins with its filter type, 0 for none
            lines[:, 1:] = file.take(count * width).reshape(count, width)
            _png_chunk(sink.write, b"IDAT", deflate.compress(lines.data))
        _png_chunk(sink.write, b"IDAT", deflate.flush())
        _png_chunk(sink.write, b"IEND", b"")
        return [sink.piece()]


def _png_chunk(write: Callable[[bytes | memoryview], None], kind: bytes, body: bytes) -> None:
    write(struct.pack(">I", len(body)) + kind)
    write(body)
    write(struct.pack(">I", zlib.crc32(body, zlib.crc32(kind))))
