"""Write past the page cache (O_DIRECT), or through it if the file system refuses O_DIRECT."""

import errno
import fcntl
import os
from collections.abc import Callable, Sequence

_BLOCK_BYTES = 512  # the smallest logical block; a disk with larger blocks refuses direct writes of only 512 bytes


def write_direct(descriptor: int, wanted: bool, write: Callable[[], int]) -> tuple[int, bool]:
    """Call `write`, with O_DIRECT set on `descriptor` if `wanted`. Return (its result, True if it bypassed the page cache).

    If the file system refuses O_DIRECT, or refuses the write because of it, `write` is called with O_DIRECT cleared.
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
    """Set or clear O_DIRECT on `descriptor`, as `wanted`. Return True if it is set now: some file systems refuse the change."""
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    if bool(flags & os.O_DIRECT) == wanted:
        return wanted
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags ^ os.O_DIRECT)
    except OSError:
        return not wanted
    return wanted


def write_once(descriptor: int, parts: Sequence[memoryview]) -> int:
    """Write `parts` by one system call and return the number of bytes written, which may be fewer than all."""
    return os.writev(descriptor, parts) if len(parts) > 1 else os.write(descriptor, parts[0] if parts else b"")


class DirectWriter:
    """Writes a new file past the page cache.

    A partial last block, and all writes after a refused one, go through the page cache.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._at_bytes = 0
        self._refused = False

    def write(self, parts: Sequence[memoryview]) -> int:
        """Write `parts` by one system call and return the number of bytes written.

        Each part must begin at a block boundary in memory. Each part except the last must consist of whole blocks.
        """
        # After a short write, as on a full disk, the next write may not begin at a block boundary of the file.
        aligned = not (self._at_bytes | sum(len(part) for part in parts)) % _BLOCK_BYTES
        wanted = aligned and not self._refused
        written, direct = write_direct(self._descriptor, wanted, lambda: write_once(self._descriptor, parts))
        self._refused = self._refused or (wanted and not direct)
        self._at_bytes += written
        return written
