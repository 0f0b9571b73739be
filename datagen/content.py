"""Random bytes for records. Storage can compress or deduplicate them only as far as the data set specifies."""

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.random_numbers import CONTENT, NOISE, bulk_stream

EXTENT_BYTES = 1 << 16  # size of the extents that `dedup` repeats
_CHUNK_BYTES = 512  # each chunk begins with random bytes, the share `entropy`, and ends with zeros, so that every block has both
_POOL_EXTENTS = 16


class Content:
    """The content of the file at `index`: a share `entropy` of random bytes, and a share `dedup` of repeated extents.

    All files of a data set repeat extents of the same pool.
    """

    def __init__(self, seed: int, index: int, entropy: float, dedup: float) -> None:
        self._stream = bulk_stream(seed, index, NOISE)
        self._random_bytes = round(_CHUNK_BYTES * entropy)
        self._dedup = dedup
        if dedup:
            pool = bulk_stream(seed, 0, CONTENT).random_raw(_POOL_EXTENTS * EXTENT_BYTES // 8)
            self._pool = pool.view(np.uint8).reshape(_POOL_EXTENTS, EXTENT_BYTES)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the next `size_bytes` bytes of the content, as a writable array."""
        if self._random_bytes == _CHUNK_BYTES and not self._dedup:
            return self._stream.random_raw(-(-size_bytes // 8)).view(np.uint8)[:size_bytes]
        count = -(-size_bytes // EXTENT_BYTES)
        extents = self._stream.random_raw(count * EXTENT_BYTES // 8).view(np.uint8).reshape(count, EXTENT_BYTES)
        if self._dedup:
            draws = self._stream.random_raw(count)
            repeats = np.flatnonzero((draws >> np.uint64(11)).astype(np.float64) * 2.0**-53 < self._dedup)
            extents[repeats] = self._pool[draws[repeats] % np.uint64(_POOL_EXTENTS)]
        extents.reshape(-1, _CHUNK_BYTES)[:, self._random_bytes :] = 0
        return extents.reshape(-1)[:size_bytes]


def as_numbers(content: NDArray[np.uint8], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return the bytes `content` as numbers of `dtype`. The top exponent bit of floats is cleared, to avoid NaN and infinity."""
    if dtype.kind == "b":
        content &= 1
        return content.view(bool)
    if dtype.kind in "fc":
        part_bytes = dtype.itemsize // (2 if dtype.kind == "c" else 1)
        top_byte = 0 if dtype.str[0] == ">" else part_bytes - 1
        content[top_byte::part_bytes] &= 0xBF
    return content.view(dtype)
