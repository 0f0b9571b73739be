"""Parse a twin's lists of reads: ``FILE:OFFSET+SIZE``, separated by spaces. FILE is an index in the twin's list of files.

``FILE:0+0`` reads nothing, but opens the file, even if the file is open already.
``FILE:OFFSET+SIZE@THREAD`` is a read by the additional thread number THREAD, counted from 1.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_READ = re.compile(r"(\d{1,9}):(\d{1,18})\+(\d{1,18})(?:@(\d{1,3}))?")


class Read(NamedTuple):
    """One read of a file."""

    file: int
    offset: int
    size_bytes: int
    thread: int  # number of the additional thread; 0 is the thread that reads the sample


def parse(listed: str) -> list[Read]:
    """Return the reads in `listed`. Raises ValueError if `listed` is malformed."""
    found = [_READ.fullmatch(word) for word in listed.split()]
    if not all(found):
        raise ValueError(f"'{listed[:60]}' is no list of reads such as 0:4096+512")
    return [Read(int(match[1]), int(match[2]), int(match[3]), int(match[4] or 0)) for match in found if match]


def visits(listed: str) -> list[tuple[int, list[Read]]]:
    """Return (index of the file, reads until the next opening) for each opening of a file in `listed`, in order."""
    found: list[tuple[int, list[Read]]] = []
    for read in parse(listed):
        opens = (read.offset, read.size_bytes) == (0, 0)
        if not found or found[-1][0] != read.file or opens:
            found.append((read.file, []))
        if not opens:
            found[-1][1].append(read)
    return found


def problem(listed: Sequence[str], files: int) -> str | None:
    """Return what is wrong with `listed`, the lists of reads of a twin with `files` files; None if they are valid."""
    for reads in listed:
        try:
            numbers = [read.file for read in parse(reads)]
        except ValueError as error:
            return str(error)
        if numbers and max(numbers) >= files:
            return f"file {max(numbers)} is not among the {files} that are named"
    return None


def size_bytes(listed: Sequence[str]) -> int:
    """Return the total size in bytes of all reads in `listed`."""
    return sum(read.size_bytes for reads in listed for read in parse(reads))
