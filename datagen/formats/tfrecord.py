"""Frame TFRecords without TensorFlow. A frame is the record's length, the length's checksum, the record and its checksum.

Source of the format: tensorflow/core/lib/io/record_writer.h. Checksums are CRC-32C (Castagnoli, RFC 3720), rotated and
shifted as in tensorflow/core/lib/hash/crc32c.h. Python's zlib.crc32 has another polynomial.
"""

from collections.abc import Iterable, Iterator

import google_crc32c
import numpy as np
from numpy.typing import NDArray

HEAD_BYTES = 12  # before a record: 8 bytes of length and 4 of checksum
TAIL_BYTES = 4  # after a record: its checksum
FRAME_BYTES = HEAD_BYTES + TAIL_BYTES
_MASK_DELTA = 0xA282EAD8


def fill_frames(stream: NDArray[np.uint8], lengths: NDArray[np.int64]) -> None:
    """Fill in the frames of the records in `stream`. Records have `lengths` bytes, with gaps for heads and tails of frames."""
    ends = np.cumsum(lengths + FRAME_BYTES) - TAIL_BYTES
    starts = ends - lengths
    known, where = np.unique(lengths, return_inverse=True)
    heads = np.zeros((len(known), HEAD_BYTES), np.uint8)
    heads[:, :8] = known.astype("<u8")[:, None].view(np.uint8)
    heads[:, 8:] = _checksums(heads[:, :8])
    stream[starts[:, None] + np.arange(-HEAD_BYTES, 0)] = heads[where]
    records = map(slice, starts.tolist(), ends.tolist())
    stream[ends[:, None] + np.arange(TAIL_BYTES)] = _checksums(stream[record] for record in records)


def _checksums(contents: Iterable[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    values = np.fromiter((google_crc32c.value(np.ascontiguousarray(content)) for content in contents), np.uint64)
    return _masked(values)[:, None].view(np.uint8)


def _masked(checksums: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """Return `checksums`, CRC-32Cs, rotated and shifted as TFRecord stores them."""
    return (((checksums >> np.uint64(15)) | (checksums << np.uint64(17))) + np.uint64(_MASK_DELTA)).astype("<u4")


def framed(length: int, content: Iterable[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """Yield the head of the frame of a record with `length` bytes, the blocks of its `content`, and the tail of the frame."""
    head = np.zeros(HEAD_BYTES, np.uint8)
    head[:8] = np.array([length], "<u8").view(np.uint8)
    head[8:] = _checksums([head[:8]])
    yield head.data
    checksum = 0
    for block in content:
        checksum = google_crc32c.extend(checksum, np.frombuffer(block, np.uint8))
        yield block
    yield _masked(np.array([checksum], np.uint64)).data.cast("B")
