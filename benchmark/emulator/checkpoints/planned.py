"""One file of a checkpoint, as it is to be written."""

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from benchmark.config import Duration


class PlannedFile(NamedTuple):
    """One file of a checkpoint."""

    name: str  # within the checkpoint folder
    write_sizes: Sequence[tuple[int, int]]  # [bytes, how often], in order
    fsync: bool
    rename: bool  # written under a temporary name, then renamed
    read_back: Sequence[tuple[int, int]] = ()  # [offset, bytes] of each read once it is written
    serialization_time: Duration | None = None  # None: a share of all files'
    direct: bool = False  # past the page cache
    looked_at: Literal["opened", "read"] | None = None  # at each later checkpoint while this one is there
    format: str | None = None  # that it was recorded in
    commits: bool = False  # written when the others are
    synced_early: bool = False  # before its bytes are written
    slots: bool = False  # mapped, and overwritten in turns
    pattern: str = ""  # its name with '{epoch}' and '{step}' in it
    keep: int | None = None  # newest of that pattern that stay, 0: all; None: as twin.checkpoint.keep says
    made_first: bool = False  # opened and closed once before it is opened to be written

    @property
    def size_bytes(self) -> int:
        """Bytes of the file."""
        return sum(size * count for size, count in self.write_sizes)

    def sizes(self) -> Iterator[int]:
        """Yield the bytes of each write."""
        for size, count in self.write_sizes:
            for _ in range(count):
                yield size
