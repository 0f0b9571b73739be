"""The copies of a batch that a loader with pinned memory makes, as time and memory traffic."""

import ctypes
import mmap
import time
from collections.abc import Iterator, Sequence
from typing import Self

from benchmark.emulator.data.order import Batch
from benchmark.emulator.loaders.base import Fetched, Loader
from common.progress import note

_BUFFER_BYTES = 16 << 20


class PinnedCopies:
    """Another loader, each of whose batches is copied into page-locked memory by the main process before it is delivered.

    The copies go through one buffer of 16 MiB: their time is spent, but the memory of whole batches is not held.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._source, self._target = mmap.mmap(-1, _BUFFER_BYTES), mmap.mmap(-1, _BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._target))
        if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(_BUFFER_BYTES)):
            note("memory cannot be locked (ulimit -l), so batches are copied into pageable memory")

    def __enter__(self) -> Self:
        """Return the loader."""
        self._loader.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        """End the other loader."""
        self._loader.__exit__(*exception)

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails or a worker dies."""
        source, target = memoryview(self._source), memoryview(self._target)
        for fetched in self._loader.epoch(epoch, batches):
            begin_ns = time.monotonic_ns()
            for done in range(0, fetched.size_bytes, _BUFFER_BYTES):
                count = min(_BUFFER_BYTES, fetched.size_bytes - done)
                target[:count] = source[:count]
            yield fetched._replace(copy_ns=time.monotonic_ns() - begin_ns)
