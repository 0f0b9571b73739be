"""The interface of layouts, the pieces that they plan, and the header of .npy files."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

LARGEST_FILE_BYTES = 1 << 53  # largest size for which float64 represents all smaller sizes exactly


class PlannedPiece(NamedTuple):
    """A file, or a contiguous part of a file, that a data set will have."""

    name: str  # path of the file relative to the data set's directory
    size_bytes: int
    offset: int = 0  # offset of the piece's first byte in the file
    file_bytes: int | None = None  # size of the whole file; None if the piece is the whole file


class Layout(Protocol):
    """The interface of layouts. A unit is a piece of work for one worker: some files, or part of a file."""

    workload: ClassVar[str]
    exact: ClassVar[bool]  # True if planned sizes are exact, False if they are close estimates

    @property
    def samples_per_file(self) -> int:
        """Return the number of samples per file. The number of samples of a data set must be a multiple of it."""

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        """Return the size in bytes of every unit of a data set of `samples` samples, shape (units,)."""

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        """Return the pieces of files that belong to the unit `unit`."""

    def file_count(self, samples: int) -> int:
        """Return the number of files of a data set of `samples` samples."""

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many samples fit into `size_bytes`."""


def npy_header(descr: str, shape: Sequence[int]) -> bytes:
    """Return the header, padded to a multiple of 64 bytes, of a .npy file (version 1.0, C order) of elements such as '<f4'.

    Source of the format: numpy.lib.format.
    """
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    padding = -(10 + len(text) + 1) % 64
    body = text.encode("latin1") + b" " * padding + b"\n"
    return b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body
