"""The layout of a traced job's data set: files with given names and sizes."""

from typing import ClassVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import UsageError
from iotwin.common.paths_below import normal, stays_within
from iotwin.datagen.layouts.base import LARGEST_FILE_BYTES, PlannedPiece

# Names of journals and manifests begin so (iotwin.datagen.manifest).
# Names of unfinished files end so (iotwin.datagen.data_set_files).
_RESERVED_STARTS = (".iotwin-generate", "manifest.json")
_RESERVED_ENDS = (".iotwin-partial",)


def is_reserved(name: str) -> bool:
    """Return True if `name`, relative to a data set's directory, is the name of a manifest, a journal or an unfinished file."""
    return name.startswith(_RESERVED_STARTS) or name.endswith(_RESERVED_ENDS)


class RecordedLayout(msgspec.Struct, frozen=True):
    """Files with given names and sizes, which substitute for the data set of a traced job. Each file is one sample."""

    files: tuple[tuple[str, int], ...] = ()  # (name relative to the directory, size in bytes)

    workload: ClassVar[str] = "recorded"
    samples_per_file: ClassVar[int] = 1
    exact: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raise UsageError if a name leads out of the directory, is reserved or repeated, or a size is impossible."""
        names: set[str] = set()
        folders: set[str] = set()
        for name, size_bytes in self.files:
            if not stays_within(name):
                raise UsageError(f"file name {name!r} does not stay within the data set's directory; give relative names")
            name = normal(name)
            if is_reserved(name):
                raise UsageError(f"a recorded file is called {name!r}, as a list of the data set's own is; leave it out")
            if not 0 <= size_bytes <= LARGEST_FILE_BYTES:
                raise UsageError(f"file {name!r} has {size_bytes} bytes; give 0 to {LARGEST_FILE_BYTES} (8 PiB)")
            if name in names:
                raise UsageError(f"the file name {name!r} stands twice in the recorded data set; each must be its own")
            names.add(name)
            while (name := name.rpartition("/")[0]) and name not in folders:
                folders.add(name)
        if both := names & folders:
            raise UsageError(f"{min(both)!r} is a file and a folder of others in the recorded data set; it can be one of them")

    def unit_pieces(self, samples: int, seed: int, unit: int) -> list[PlannedPiece]:
        return [PlannedPiece(*self.files[unit])]

    def unit_bytes(self, samples: int, seed: int) -> NDArray[np.int64]:
        return np.array([size_bytes for _, size_bytes in self.files[:samples]], np.int64)

    def file_count(self, samples: int) -> int:
        return samples

    def samples_within(self, size_bytes: int, seed: int) -> int:
        """Return how many files, from the first one on, fit whole into `size_bytes`."""
        return int(np.searchsorted(np.cumsum(self.unit_bytes(len(self.files), seed)), size_bytes, side="right"))
