"""Loaders that wrap another loader: one copies batches into page-locked memory, one opens files before each pass."""

import ctypes
import mmap
import time
from collections.abc import Iterator, Sequence
from typing import Self

from iotwin.benchmark.emulator.data.dataset import SharedFiles
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Loader
from iotwin.common.progress import note

_BUFFER_BYTES = 16 << 20


class _WrappedLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __enter__(self) -> Self:
        self._loader.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loader.__exit__(*exception)


class PinnedCopies(_WrappedLoader):
    """Wraps a loader; the main process copies each batch into page-locked memory before it delivers the batch.

    All copies use one buffer of 16 MiB. They take the time of real copies, but not the memory of whole batches.
    """

    def __init__(self, loader: Loader) -> None:
        super().__init__(loader)
        self._source, self._target = mmap.mmap(-1, _BUFFER_BYTES), mmap.mmap(-1, _BUFFER_BYTES)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._target))
        if ctypes.CDLL(None, use_errno=True).mlock(ctypes.c_void_p(address), ctypes.c_size_t(_BUFFER_BYTES)):
            note("memory cannot be locked (ulimit -l), so batches are copied into pageable memory")

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        source, target = memoryview(self._source), memoryview(self._target)
        for fetched in self._loader.epoch(epoch, batches):
            begin_ns = time.monotonic_ns()
            for done in range(0, fetched.size_bytes, _BUFFER_BYTES):
                count = min(_BUFFER_BYTES, fetched.size_bytes - done)
                target[:count] = source[:count]
            yield fetched._replace(copy_ns=time.monotonic_ns() - begin_ns)


class OpenedEachPass(_WrappedLoader):
    """Wraps a loader; the main process opens the loader's files before each pass and closes them after it."""

    def __init__(self, loader: Loader, files: SharedFiles) -> None:
        super().__init__(loader)
        self._files = files

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        self._files.open()
        try:
            yield from self._loader.epoch(epoch, batches)
        finally:
            self._files.close()
