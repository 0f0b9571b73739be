"""The bytes that checkpoints hold: one buffer serves all writes, so that memory does not grow with the model."""

import mmap
from collections.abc import Callable, Sequence

from numpy.random import Generator

LARGEST_BYTES = 8 << 20  # of the buffer
_PIECE_BYTES = 1 << 16
_MAX_VECTORS = 1024  # IOV_MAX of Linux


class Content:
    """Bytes for writes of `largest_bytes`, or more by repeating them; random by `draws`, so that nothing compresses them."""

    def __init__(self, largest_bytes: int, draws: Generator | None) -> None:
        size_bytes = max(1, min(largest_bytes, LARGEST_BYTES))
        # Whole pages, as writes past the page cache want them; private, as the default is shared with processes forked later.
        content = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if draws is not None:
            # Piece by piece: a second buffer, freed just before the first checkpoint, would have its pages at hand for it.
            for begin in range(0, size_bytes, _PIECE_BYTES):
                content.write(draws.bytes(min(_PIECE_BYTES, size_bytes - begin)))
        self.buffer = memoryview(content)

    def write(self, size_bytes: int, write: Callable[[Sequence[memoryview]], int]) -> None:
        """Write `size_bytes` by one call of `write`; by more where the kernel takes less at a time, which it returns."""
        left = size_bytes
        while True:
            whole, rest = divmod(left, len(self.buffer))
            parts = [self.buffer] * min(whole, _MAX_VECTORS) + ([self.buffer[:rest]] if rest and whole < _MAX_VECTORS else [])
            left -= write(parts)
            if left == 0:
                return
