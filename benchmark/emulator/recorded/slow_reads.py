"""Add the latency of slower storage to the reads that the page cache does not serve."""

import os
from collections.abc import Callable

_MOST_BUFFERS = 1024  # IOV_MAX


def read_slowly(descriptor: int, size: int, offset: int, scratch: memoryview, delay: Callable[[], None]) -> int:
    """Read `size` bytes at `offset` (negative: the file's position) and return how many there were.

    If the page cache did not hold all of them, call `delay` after the read. `scratch` is overwritten.
    """
    at_position = offset < 0
    begin = os.lseek(descriptor, 0, os.SEEK_CUR) if at_position else offset
    buffers = repeated(size, scratch)
    try:
        held = os.preadv(descriptor, buffers, begin, os.RWF_NOWAIT)
    except BlockingIOError:
        held = 0
    moved = os.readv(descriptor, buffers) if at_position else os.preadv(descriptor, buffers, offset)
    if held < moved:
        delay()
    return moved


def repeated(size: int, scratch: memoryview) -> list[memoryview]:
    """Return memory for `size` bytes that consists of the same `scratch` again and again; the bytes are not needed."""
    whole, rest = divmod(size, len(scratch))
    return [*[scratch] * min(whole, _MOST_BUFFERS - 1), scratch[:rest]]
