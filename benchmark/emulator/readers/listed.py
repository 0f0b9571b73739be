"""Reads samples that a twin lists as reads of file ranges, as the traced job made them (an index, a chunk, a label)."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import groupby

from iotwin.benchmark.emulator.readers.access import Buffered, Opener, OpenFile, scratch
from iotwin.benchmark.emulator.readers.sample import Sample
from iotwin.workload_yaml.listed_reads import Read, visits

_beside = threading.local()


class ToItsEnd(Buffered):
    """As Buffered, but no bytes behind the first are a read that finds nothing: so a program learns that a file has ended."""

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return these bytes; IotwinError when the file ends before."""
        if offset and not size_bytes:
            os.preadv(self._descriptor, [scratch(1)], offset)
        return super().read(offset, size_bytes)


class ListedReads:
    """Reads sample i by the reads `listed[i]` of the files `paths`. The path of a sample is its index i as text."""

    def __init__(self, opener: Opener, paths: Sequence[str], listed: Sequence[str]) -> None:
        self._open, self._paths, self._listed = opener, paths, listed

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return what is read last for the sample; IotwinError, naming the file, when that ends before."""
        read_bytes, content = 0, scratch(0)
        for number, reads in visits(self._listed[int(path)]):
            with self._open(self._paths[number]) as file:
                for by_threads, run in groupby(reads, lambda read: read.thread > 0):
                    asked = list(run)
                    content = _read_beside(file, asked) if by_threads else _read(file, asked)
                    read_bytes += sum(read.size_bytes for read in asked)
        return Sample(content, read_bytes)


def _read(file: OpenFile, reads: Sequence[Read]) -> memoryview:
    return [file.read(read.offset, read.size_bytes) for read in reads][-1]


def _read_beside(file: OpenFile, reads: Sequence[Read]) -> memoryview:
    """Read by the threads of these numbers at the same time, and return what is read last once all are done."""
    asked = [_thread(read.thread).submit(file.read, read.offset, read.size_bytes) for read in reads]
    wait(asked)
    return [each.result() for each in asked][-1]


def _thread(number: int) -> ThreadPoolExecutor:
    """Return the additional thread `number` of this process; a forked process has separate ones."""
    threads: dict[tuple[int, int], ThreadPoolExecutor] = _beside.__dict__.setdefault("threads", {})
    key = os.getpid(), number
    if key not in threads:
        threads[key] = ThreadPoolExecutor(1, f"reader-{number}")
    return threads[key]
