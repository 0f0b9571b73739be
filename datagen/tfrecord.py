"""TFRecord framing without TensorFlow: length, its checksum, the record, its checksum.

Source of the format: tensorflow/core/lib/io/record_writer.h.
"""

import numpy as np
from numpy.typing import NDArray

from datagen.crc32c import crc32c_each, masked

FRAME_BYTES = 16  # 8 of length and 4 of checksum before a record, 4 of checksum after it


def frame(flat: NDArray[np.uint8], lengths: NDArray[np.int64], checksums: NDArray[np.uint32] | None = None) -> NDArray[np.uint8]:
    """Return records of `lengths` bytes, which lie one after the other in `flat`, as a TFRecord stream.

    `checksums` are the records' CRC-32Cs, for records too long for crc32c_each.
    """
    if checksums is None:
        checksums = crc32c_each(flat, lengths)
    head = np.zeros((len(lengths), 12), np.uint8)
    head[:, :8] = lengths.astype("<u8")[:, None].view(np.uint8)
    sizes = np.ascontiguousarray(head[:, :8])
    head[:, 8:] = masked(crc32c_each(sizes.reshape(-1), np.full(len(lengths), 8)))[:, None].view(np.uint8)
    ends = np.cumsum(lengths + FRAME_BYTES)
    starts = ends - lengths - FRAME_BYTES
    stream = np.empty(int(ends[-1]), np.uint8)
    content = np.ones(len(stream), bool)
    for places, values in (
        (starts[:, None] + np.arange(12), head),
        (ends[:, None] - 4 + np.arange(4), masked(checksums)[:, None].view(np.uint8)),
    ):
        content[places] = False
        stream[places] = values
    stream[content] = flat
    return stream
