"""Read samples that a twin lists as reads of file ranges, as the traced job made them (an index, a chunk, a label)."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby

from iotwin.benchmark.emulator.readers.access import Buffered, Opener, OpenFile, scratch
from iotwin.benchmark.emulator.readers.sample import Sample
from iotwin.workload_yaml.listed_reads import Read, visits

_local = threading.local()


class BufferedToEnd(Buffered):
    """As Buffered, but a request for 0 bytes after the beginning makes a read of one byte, by which programs detect the end."""

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset and not size_bytes:
            os.preadv(self._descriptor, [scratch(1)], offset)
        return super().read(offset, size_bytes)


class ListedReads:
    """Reads sample i by the reads `listed[i]` of the files `paths`. As the path of the sample, `read` expects its index i."""

    def __init__(self, opener: Opener, paths: Sequence[str], listed: Sequence[str]) -> None:
        self._open, self._paths, self._listed = opener, paths, listed

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Make the sample's reads and return the bytes of the last one. Raises IotwinError if a file ends before."""
        read_bytes, content = 0, scratch(0)
        for number, reads in visits(self._listed[int(path)]):
            with self._open(self._paths[number]) as file:
                for by_threads, run in groupby(reads, lambda read: read.thread > 0):
                    asked = list(run)
                    content = _read_by_threads(file, asked) if by_threads else _read(file, asked)
                    read_bytes += sum(read.size_bytes for read in asked)
        return Sample(content, read_bytes)


def _read(file: OpenFile, reads: Sequence[Read]) -> memoryview:
    return [file.read(read.offset, read.size_bytes) for read in reads][-1]


def _read_by_threads(file: OpenFile, reads: Sequence[Read]) -> memoryview:
    """Make each of `reads` by its own thread, concurrently, and return the bytes of the last one when all are done."""
    asked = [_thread(read.thread).submit(file.read, read.offset, read.size_bytes) for read in reads]
    wait(asked)
    return [each.result() for each in asked][-1]


def _thread(number: int) -> ThreadPoolExecutor:
    """Return the additional thread `number` of this process; a forked process has separate ones."""
    threads: dict[tuple[int, int], ThreadPoolExecutor] = _local.__dict__.setdefault("threads", {})
    key = os.getpid(), number
    if key not in threads:
        threads[key] = ThreadPoolExecutor(1, f"reader-{number}")
    return threads[key]
