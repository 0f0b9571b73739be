"""Read samples by the reads that a twin has recorded: ranges of files (an index, a chunk, a label), or sizes for every file."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import wait
from itertools import chain, groupby, repeat

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.readers.access import Buffered, Opener, OpenFile, damaged, scratch, unreadable
from iotwin.benchmark.emulator.readers.sample import Sample
from iotwin.benchmark.emulator.threads import TaskThreads
from iotwin.workload_yaml.listed_reads import Read, visits

_local = threading.local()


class BufferedToEnd(Buffered):
    """As Buffered, but a request for 0 bytes at an offset above 0 reads one byte, as programs do to detect the end of a file."""

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset and not size_bytes:
            os.preadv(self._descriptor, [scratch(1)], offset)
        return super().read(offset, size_bytes)


class ListedReads:
    """Reads sample i by the reads `listed[i]` of the files `paths`. Callers of `read` pass the index i as the path."""

    def __init__(self, opener: Opener, paths: Sequence[str], listed: Sequence[str]) -> None:
        self._open, self._paths, self._listed = opener, paths, listed

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Make all reads of the sample. Return the data of the last read, with the number of bytes of all.

        Raises IotwinError if a file is shorter than a read requires.
        """
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
    """Make the `reads` concurrently, each in a separate thread, and return the bytes of the last one when all are done."""
    asked = [_thread(read.thread).submit(file.read, read.offset, read.size_bytes) for read in reads]
    waits.wait_on_clock(lambda: all(each.done() for each in asked))
    wait(asked)
    return [each.result() for each in asked][-1]


def _thread(number: int) -> TaskThreads:
    """Return the additional thread `number` of this process; a forked process has separate ones."""
    threads: dict[tuple[int, int], TaskThreads] = _local.__dict__.setdefault("threads", {})
    key = os.getpid(), number
    if key not in threads:
        threads[key] = TaskThreads(1, f"reader-{number}")
    return threads[key]


class RecordedReads:
    """Reads whole files of any content, one for each sample, by reads of the recorded `sizes`.

    The last size is repeated until the end of the file. `past_end`: one more read finds the end.
    """

    def __init__(self, sizes: list[int], past_end: bool) -> None:
        self._sizes, self._past_end = sizes, past_end

    def read(self, path: str, sample: int, samples: int) -> Sample:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise unreadable(path, error) from None
        try:
            size_bytes = os.fstat(descriptor).st_size
            view = scratch(size_bytes + self._sizes[-1])
            done = 0
            for wanted in chain(self._sizes, repeat(self._sizes[-1])):
                if done >= size_bytes and not self._past_end:
                    break
                count = os.readv(descriptor, [view[done : done + min(wanted, len(view) - done)]])
                done += count
                if count == 0:
                    break
        except OSError as error:
            raise unreadable(path, error) from None
        finally:
            os.close(descriptor)
        if done < size_bytes or not done:
            raise damaged(path, f"ends after {done} bytes: it is empty or has become shorter")
        return Sample(view[:done], done)
