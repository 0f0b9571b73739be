"""Samples that are listed reads: stretches of files, as a traced job read them for each (an index, a chunk, a label)."""

import os
from collections.abc import Sequence

from benchmark.config.listed_reads import visits
from benchmark.emulator.readers.access import Buffered, Opener, scratch
from benchmark.emulator.readers.sample import Sample


class ToItsEnd(Buffered):
    """As Buffered, but no bytes behind the first are a read that finds nothing: so a program learns that a file has ended."""

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return these bytes; IotwinError when the file ends before."""
        if offset and not size_bytes:
            os.preadv(self._descriptor, [scratch(1)], offset)
        return super().read(offset, size_bytes)


class ListedReads:
    """Sample i, whose path is its number, by the reads that `listed[i]` says, of the files at `paths`."""

    def __init__(self, opener: Opener, paths: Sequence[str], listed: Sequence[str]) -> None:
        self._open, self._paths, self._listed = opener, paths, listed

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return what is read last for the sample; IotwinError, naming the file, when that ends before."""
        read_bytes, content = 0, scratch(0)
        for number, reads in visits(self._listed[int(path)]):
            with self._open(self._paths[number]) as file:
                for offset, size_bytes in reads:
                    content = file.read(offset, size_bytes)
                    read_bytes += size_bytes
        return Sample(content, read_bytes)
