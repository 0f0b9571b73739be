"""The interface of readers, the samples that they return, and readers of samples in memory."""

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted


class Sample(NamedTuple):
    """A sample. The same thread's next read may overwrite its content."""

    content: NDArray[np.generic] | memoryview
    read_bytes: int  # bytes read from the file for it, including headers and indices


class SampleReader(Protocol):
    """The interface of readers of one format. A reader may cache data between reads, but keeps no file open."""

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return the sample at index `sample` of the file at `path`, which should hold `samples` samples.

        Raises IotwinError, which names the file, if it cannot be read, is damaged or holds too few samples.
        """


def check_member(path: str, sample: int, found: int) -> None:
    """Raise IotwinError if the file at `path`, which holds `found` samples, has none at index `sample`."""
    if sample >= found:
        raise IotwinError(
            f"{path}: holds {counted(found, 'sample')}, not the {sample + 1} or more of dataset.num_samples_per_file; "
            "correct it or generate the data set again"
        )


class InMemory:
    """Wraps a reader and keeps all its samples in memory (`reader.read_type: memory`) until the process ends."""

    def __init__(self, reader: SampleReader) -> None:
        self._reader = reader
        self._kept: dict[tuple[str, int], NDArray[np.uint8]] = {}

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return the sample, which is read from its file only once."""
        kept = self._kept.get((path, sample))
        if kept is not None:
            return Sample(kept, 0)
        read = self._reader.read(path, sample, samples)
        self._kept[path, sample] = np.frombuffer(read.content.tobytes(), np.uint8)
        return read


class Synthetic:
    """Delivers samples of `record_bytes` bytes without reading files, to measure the cost of the loop without storage."""

    def __init__(self, record_bytes: int) -> None:
        self._sample = Sample(np.zeros(record_bytes, np.uint8), 0)

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return a sample that is not read from any file."""
        return self._sample
