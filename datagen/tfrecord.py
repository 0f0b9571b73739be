"""TFRecord framing without TensorFlow: length, its checksum, the record, its checksum.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from datagen.crc32c import Crc32c, crc32c_each, masked

HEAD_BYTES = 12  # 8 of length and 4 of checksum before a record
TAIL_BYTES = 4  # of checksum after it
FRAME_BYTES = HEAD_BYTES + TAIL_BYTES


def fill_frames(stream: NDArray[np.uint8], lengths: NDArray[np.int64]) -> None:
    """Write the frames of records of `lengths` bytes (at most some kilobytes) into the gaps that `stream` has for them."""
    ends = np.cumsum(lengths + FRAME_BYTES)
    starts = ends - lengths - TAIL_BYTES
    head = np.zeros((len(lengths), HEAD_BYTES), np.uint8)
    head[:, :8] = lengths.astype("<u8")[:, None].view(np.uint8)
    sizes = np.ascontiguousarray(head[:, :8]).reshape(-1)
    eights = np.full(len(lengths), 8, np.int64)
    head[:, 8:] = masked(crc32c_each(sizes, np.cumsum(eights) - 8, eights))[:, None].view(np.uint8)
    stream[starts[:, None] + np.arange(-HEAD_BYTES, 0)] = head
    tail = masked(crc32c_each(stream, starts, lengths))
    stream[ends[:, None] + np.arange(-TAIL_BYTES, 0)] = tail[:, None].view(np.uint8)


def framed(length: int, content: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the frame around one record of `length` bytes, however long, and its content between."""
    head = length.to_bytes(8, "little")
    yield head + _checksum(head)
    crc = Crc32c()
    for block in content:
        crc.update(block)
        yield block
    yield masked(np.array([crc.value()], np.uint32)).tobytes()


def _checksum(data: bytes) -> bytes:
    crc = Crc32c()
    crc.update(data)
    return masked(np.array([crc.value()], np.uint32)).tobytes()
