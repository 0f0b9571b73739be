"""Writes past the page cache (O_DIRECT), and through it where that is refused."""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence

_BLOCK_BYTES = 512  # the smallest that O_DIRECT aligns to; a disk of larger ones refuses what does not fill them


def write_direct(descriptor: int, wanted: bool, write: Callable[[], int]) -> tuple[int, bool]:
    """Call `write`, past the page cache if `wanted`; return what it returns, and whether it went past.

    It goes through the cache, too, where the file system or its disk refuses the mode, or the write in it.
    """
    direct = _set_direct(descriptor, wanted)
    try:
        return write(), direct
    except OSError as error:
        if error.errno != errno.EINVAL or not direct:
            raise
    _set_direct(descriptor, False)
    return write(), False


def _set_direct(descriptor: int, wanted: bool) -> bool:
    """Set whether writes to a file bypass the page cache. Return whether they do: some file systems refuse."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if bool(flags & os.O_DIRECT) == wanted:
        return wanted
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags ^ os.O_DIRECT)
    except OSError:
        return not wanted
    return wanted


def write_once(descriptor: int, parts: Sequence[memoryview]) -> int:
    """Write `parts` by one system call; return how many bytes of them are written."""
    return os.writev(descriptor, parts) if len(parts) > 1 else os.write(descriptor, parts[0] if parts else b"")


class DirectWriter:
    """Writes an open, empty file past the page cache. A last partial block, and all after a refusal, goes through the cache."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at_bytes = 0
        self._refused = False

    def write(self, parts: Sequence[memoryview]) -> int:
        """Write `parts` by one system call and return how many bytes of them are written.

        They lie at whole blocks in memory, and all but the last fill some.
        """
        # A short write, as on a full disk, may leave what no longer begins at a block.
        aligned = not (self._at_bytes | sum(len(part) for part in parts)) % _BLOCK_BYTES
        wanted = aligned and not self._refused
        written, direct = write_direct(self._descriptor, wanted, lambda: write_once(self._descriptor, parts))
        self._refused = self._refused or (wanted and not direct)
        self._at_bytes += written
        return written
