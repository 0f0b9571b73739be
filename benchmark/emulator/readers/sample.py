"""The interface of readers, and the samples that they return."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError


class Sample(NamedTuple):
    """One sample as it was read; its content may be overwritten by the same thread's next read."""

    content: NDArray[np.generic] | memoryview
    read_bytes: int  # that came out of the file for it, the sample's own and what stands around them


class SampleReader(Protocol):
    """Reads samples out of files of one format. It may keep what speeds up the next read, but never a descriptor."""

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return sample `sample` (from 0) of the file at `path`, which should hold `samples`.

        Raises IotwinError, one line that names the file, when it cannot be read, is not whole or holds fewer samples.
        """


def check_member(path: str, sample: int, found: int) -> None:
    """Raise IotwinError: the file at `path` holds only `found` samples and not `sample`."""
    if sample >= found:
        raise IotwinError(
            f"{path}: holds {found} samples, not the {sample + 1} or more of dataset.num_samples_per_file; "
            "correct it or generate the data set again"
        )


class InMemory:
    """Keeps every sample that another reader delivers (`reader.read_type: memory`), as long as its process lives."""

    def __init__(self, reader: SampleReader) -> None:
        self._reader = reader
        self._kept: dict[tuple[str, int], NDArray[np.uint8]] = {}

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return the sample, from its file the first time only."""
        kept = self._kept.get((path, sample))
        if kept is not None:
            return Sample(kept, 0)
        read = self._reader.read(path, sample, samples)
        self._kept[path, sample] = np.frombuffer(read.content.tobytes(), np.uint8)
        return read
