"""What of a file the page cache holds, and in which pieces."""

import os
from pathlib import Path

_PIECE_BYTES = 1 << 16  # what a page fault maps around it


def evict(path: Path) -> None:
    """Put a file, and nothing else, out of the page cache; what was not written yet has to be, first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cache_in_pages(path: Path) -> None:
    """Have a file in the page cache page by page.

    What was just written lies there in large folios, of which the kernel maps up to 2 MiB at a page fault: a job that maps the
    file then faults far less often than on data that have been read.
    """
    evict(path)
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        while file.read(_PIECE_BYTES):
            pass
