"""Write tables of numbers as CSV text, compressed if the layout specifies a compression."""

import bz2
import lzma
import math
import zlib
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.formats.file_to_write import File

_BLOCK_COLUMNS = 1 << 16


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressor(kind: str, level: int) -> _Compressor | None:
    match kind:
        case "gzip":
            return zlib.compressobj(level, wbits=31)
        case "bz2":
            return bz2.BZ2Compressor(max(1, level))
        case "xz":
            return lzma.LZMACompressor(preset=level)
    return None


def write_csv(file: File) -> list[Piece]:
    """Write a CSV file: a header line with the column numbers, then one line per record. Return the piece of the file."""
    compressor = _compressor(file.layout.compression, file.layout.compression_level)
    columns = math.prod(file.shape)
    with file.open(file.name) as sink:
        for text in _csv_text(file, columns):
            sink.write(compressor.compress(text) if compressor else text)
        if compressor:
            sink.write(compressor.flush())
        return [sink.piece()]


def _csv_text(file: File, columns: int) -> Iterator[bytes]:
    for first in range(0, columns, _BLOCK_COLUMNS):
        last = min(first + _BLOCK_COLUMNS, columns)
        yield (",".join(map(str, range(first, last))) + ("\n" if last == columns else ",")).encode()
    small = np.arange(256).astype("S3") if file.dtype == np.uint8 else None
    done = 0
    for block in file.blocks():
        numbers = block.view(file.dtype)
        texts = small.take(numbers) if small is not None else numbers.astype("S")
        width = texts.dtype.itemsize
        letters = np.zeros((len(texts), width + 1), np.uint8)
        letters[:, :width] = texts.view(np.uint8).reshape(-1, width)
        letters[:, width] = ord(",")
        letters[(columns - 1 - done) % columns :: columns, width] = ord("\n")
        done += len(texts)
        flat = letters.reshape(-1)
        yield flat.compress(flat != 0).tobytes()
