"""What every layout has: the pieces it plans, its protocol, the types of elements, and the header of .npy files."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

LARGEST_FILE_BYTES = 1 << 53  # as much as a float64 counts exactly


class PlannedPiece(NamedTuple):
    """A file of a data set, or a run of bytes of one, before it is written."""

    name: str  # of the file, relative to the data set's directory
    size_bytes: int
    offset: int = 0  # of the piece's first byte in the file
    file_bytes: int | None = None  # of the whole file where a file has several pieces; None when the piece is the file


class Layout(Protocol):
    """What every data set knows of its files. A unit is what one worker writes without the others, in any order."""

    workload: ClassVar[str]
    exact: ClassVar[bool]  # whether planned sizes are exact, or close estimates of what content will come to

    @property
    def samples_per_file(self) -> int:
        """Samples must come in multiples of this: more than one only where files of a fixed number of samples are whole."""

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the bytes of every unit of a data set of `samples` samples."""

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return what unit `unit` writes."""

    def file_count(self, samples: int) -> int:
        """Return the number of files of a data set of `samples` samples."""

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many samples fit into `size_bytes`; 0 when none does."""


def npy_header(descr: str, shape: Sequence[int]) -> bytes:
    """Return the header of a version 1.0 .npy file in C order: `descr` as '<f4', padded to a multiple of 64 bytes.

    Source of the format: numpy.lib.format.
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    padding = -(10 + len(text) + 1) % 64
    body = text.encode("latin1") + b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
