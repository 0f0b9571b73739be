"""Read files of any content whole, by requests of recorded sizes."""

import os
from itertools import chain, repeat

from iotwin.benchmark.emulator.readers.access import damaged, scratch, unreadable
from iotwin.benchmark.emulator.readers.sample import Sample


class RecordedReads:
    """Reads whole files of any content, one for each sample, by reads of the recorded `sizes`.

    The last size is repeated until the end of the file. After a 0 at the end of `sizes`, one more read finds the file's end.
    """

    def __init__(self, sizes: list[int]) -> None:
        self._sizes, self._past_end = [size for size in sizes if size], sizes[-1] == 0

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
