"""A file that a format's writer is to write: its name, the shape of its records, and their content in blocks of bounded size."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.content import Content, as_numbers
from iotwin.datagen.data_set_files import PieceWriter
from iotwin.datagen.layouts import FormatLayout

# Size of a block. For much larger arrays, malloc maps new memory each time, and every new page causes a page fault.
BLOCK_BYTES = 1 << 19


@dataclass(frozen=True)
class File:
    """A file to write in `directory`, with its records."""

    layout: FormatLayout
    directory: Path
    name: str
    indices: list[str]  # names of the index files that belong to the file
    shape: tuple[int, ...]  # shape of one record
    content: Content
    written: Callable[[int], None]

    @property
    def records(self) -> int:
        """Return the number of records."""
        return self.layout.samples_per_file

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Return the type of a record's elements."""
        return np.dtype(self.layout.dtype)

    @property
    def record_bytes(self) -> int:
        """Return the size of one record in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self, name: str) -> PieceWriter:
        """Return a PieceWriter for the file `name`, which is this file or one of its index files."""
        return PieceWriter(self.directory, name, self.written)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the next `size_bytes` bytes of content, which represent valid numbers of the type `dtype`."""
        return as_numbers(self.content.take(size_bytes), self.dtype).view(np.uint8)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all records in blocks of about half a mebibyte."""
        left = self.records * self.record_bytes
        step = BLOCK_BYTES // self.dtype.itemsize * self.dtype.itemsize
        while left:
            yield self.take(min(left, step))
            left -= min(left, step)

    def one_record(self) -> Iterator[memoryview]:
        """Yield the bytes of the next record in blocks of about half a mebibyte."""
        for start in range(0, self.record_bytes, BLOCK_BYTES):
            yield self.take(min(BLOCK_BYTES, self.record_bytes - start)).data

    def batches(self, records: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the next `records` records in arrays (count, record bytes) of half a mebibyte, or of one larger record."""
        each = max(1, BLOCK_BYTES // self.record_bytes)
        for first in range(0, records, each):
            count = min(each, records - first)
            yield self.take(count * self.record_bytes).reshape(count, self.record_bytes)
