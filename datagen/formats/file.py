"""A file to be written: its place, its records, and their bytes by blocks, so that memory does not grow with its size."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.content import Content, as_numbers
from iotwin.datagen.files import PieceWriter
from iotwin.datagen.layouts import FormatLayout

# Much larger arrays go back to the system whenever they are freed, and cost its page faults again.
BLOCK_BYTES = 1 << 19


@dataclass(frozen=True)
class File:
    """One file to write."""

    layout: FormatLayout
    directory: Path
    name: str
    indices: list[str]
    shape: tuple[int, ...]  # of one record
    content: Content
    written: Callable[[int], None]

    @property
    def records(self) -> int:
        """Number of records."""
        return self.layout.samples_per_file

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of a record's elements."""
        return np.dtype(self.layout.dtype)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self, name: str) -> PieceWriter:
        """Return the writer of the file `name`, this one's own or an index of it."""
        return PieceWriter(self.directory, name, self.written)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the next bytes of content, valid as numbers of dtype."""
        return as_numbers(self.content.take(size_bytes), self.dtype).view(np.uint8)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all records, about half a mebibyte at a time."""
        left = self.records * self.record_bytes
        step = BLOCK_BYTES // self.dtype.itemsize * self.dtype.itemsize
        while left:
            yield self.take(min(left, step))
            left -= min(left, step)

    def one_record(self) -> Iterator[memoryview]:
        """Yield the bytes of the next record, about half a mebibyte at a time."""
        for start in range(0, self.record_bytes, BLOCK_BYTES):
            yield self.take(min(BLOCK_BYTES, self.record_bytes - start)).data

    def batches(self, records: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the next records as (count, record bytes), about half a mebibyte or one record at a time."""
        each = max(1, BLOCK_BYTES // self.record_bytes)
        for first in range(0, records, each):
            count = min(each, records - first)
            yield self.take(count * self.record_bytes).reshape(count, self.record_bytes)
