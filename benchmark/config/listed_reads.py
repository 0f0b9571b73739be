"""Reads as a twin lists them: ``FILE:OFFSET+SIZE``, parted by spaces; FILE is the number of a file in the twin's list, from 0.

``FILE:0+0`` reads nothing: it opens the file, also one that is open already.
"""

import re
from collections.abc import Sequence

_READ = re.compile(r"(\d{1,9}):(\d{1,18})\+(\d{1,18})")


def parse(listed: str) -> list[tuple[int, int, int]]:
    """Return (file, offset, size in bytes) of each read; ValueError when `listed` says something else."""
    found = [_READ.fullmatch(word) for word in listed.split()]
    if not all(found):
        raise ValueError(f"'{listed[:60]}' is no list of reads such as 0:4096+512")
    return [(int(match[1]), int(match[2]), int(match[3])) for match in found if match]


def visits(listed: str) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return (file, its reads as (offset, size in bytes)) of each time that a file is opened, in order."""
    found: list[tuple[int, list[tuple[int, int]]]] = []
    for file, offset, size_bytes in parse(listed):
        if not found or found[-1][0] != file or (offset, size_bytes) == (0, 0):
            found.append((file, []))
        if (offset, size_bytes) != (0, 0):
            found[-1][1].append((offset, size_bytes))
    return found


def problem(listed: Sequence[str], files: int) -> str | None:
    """Return what is wrong with lists of reads of so many files; None if nothing is."""
    for reads in listed:
        try:
            numbers = [number for number, _, _ in parse(reads)]
        except ValueError as error:
            return str(error)
        if numbers and max(numbers) >= files:
            return f"file {max(numbers)} is not among the {files} that are named"
    return None


def size_bytes(listed: Sequence[str]) -> int:
    """Return the bytes that these reads bring."""
    return sum(size for reads in listed for _, _, size in parse(reads))
