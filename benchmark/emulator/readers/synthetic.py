"""A reader that reads no files, to measure the cost of the loop without storage."""

from iotwin.benchmark.emulator.readers.access import scratch
from iotwin.benchmark.emulator.readers.sample import Sample


class Synthetic:
    """Delivers samples of `record_bytes` bytes from memory."""

    def __init__(self, record_bytes: int) -> None:
        self._record_bytes = record_bytes

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return as many bytes as a sample has; none of them was read."""
        return Sample(scratch(self._record_bytes), 0)
