"""Read files through the page cache, through a mapping, or past the page cache (O_DIRECT).

Each thread reuses one buffer for all reads, as the loaders of jobs reuse a few buffers. So the result of a read is valid until
the thread's next read. A read fetches only the requested bytes, extended to whole blocks for O_DIRECT.
"""

import io
import mmap
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from iotwin.common.errors import IotwinError

_ALIGNMENT_BYTES = 4096  # for O_DIRECT (open(2)): no disk in use has larger logical blocks
_LARGEST_READ_BYTES = 0x7FFFF000  # read(2) on Linux transfers at most this many bytes


class OpenFile(AbstractContextManager["OpenFile"], Protocol):
    """The interface of files that are open for reading. Leaving its context closes the file."""

    size_bytes: int

    def read(self, offset: int, size_bytes: int) -> memoryview:
        """Return `size_bytes` bytes from `offset` on. Raises IotwinError, which names the file, if the file is too short."""


Opener = Callable[[str], OpenFile]


def _pages(size_bytes: int) -> mmap.mmap:
    """Return new page-aligned memory. It is private, since mmap's default is shared with forked processes."""
    return mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


class _Scratch(threading.local):
    """The page-aligned buffer of each thread, as large as its largest read so far."""

    def __init__(self) -> None:
        self._memory = _pages(_ALIGNMENT_BYTES)

    def take(self, size_bytes: int) -> memoryview:
        if size_bytes > len(self._memory):
            self._memory = _pages(aligned_up(size_bytes))
        return memoryview(self._memory)[:size_bytes]


_scratch = _Scratch()


def aligned_up(size_bytes: int) -> int:
    """Return `size_bytes` rounded up to a multiple of the alignment."""
    return -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES


def scratch(size_bytes: int) -> memoryview:
    """Return `size_bytes` bytes of this thread's reused, page-aligned buffer."""
    return _scratch.take(size_bytes)


def unreadable(path: str, error: OSError) -> IotwinError:
    """Return the error for a file that the system cannot read."""
    return IotwinError(f"{path}: cannot be read: {error.strerror or error}")


def damaged(path: str, reason: object) -> IotwinError:
    """Return the error for a file with damaged content."""
    return IotwinError(f"{path}: {' '.join(str(reason).split())}; generate the data set again")


def check_within(path: str, size_bytes: int, offset: int, wanted_bytes: int) -> None:
    """Raise IotwinError if the file of `size_bytes` ends before `offset` + `wanted_bytes`."""
    if offset + wanted_bytes > size_bytes:
        raise damaged(path, f"ends after {size_bytes} bytes, before the {wanted_bytes} bytes wanted at {offset}")


def scratch_for(path: str, file_bytes: int, offset: int, wanted_bytes: int) -> memoryview:
    """Return memory for `wanted_bytes` from `offset` on. Raises IotwinError if the file of `file_bytes` ends before."""
    check_within(path, file_bytes, offset, wanted_bytes)
    return scratch(wanted_bytes)


class _Descriptor(OpenFile):
    """Base class of the local files: a file descriptor and the file's size."""

    def __init__(self, path: str, flags: int = 0) -> None:
        self._path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
        except OSError as error:
            raise unreadable(path, error) from None
        self.size_bytes = os.fstat(self._descriptor).st_size

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


class Buffered(_Descriptor):
    """Reads by pread(2) through the page cache, at most `transfer_bytes` per call if given, otherwise by one call."""

    def __init__(self, path: str, transfer_bytes: int | None = None) -> None:
        super().__init__(path)
        self._transfer_bytes = transfer_bytes or _LARGEST_READ_BYTES

    def read(self, offset: int, size_bytes: int) -> memoryview:
        view = scratch_for(self._path, self.size_bytes, offset, size_bytes)
        _fill(self._path, self._descriptor, view, offset, self._transfer_bytes)
        return view


class BufferedToEnd(Buffered):
    """As Buffered, but a request for 0 bytes at an offset above 0 reads one byte, as programs do to detect the end of a file."""

    def read(self, offset: int, size_bytes: int) -> memoryview:
        if offset and not size_bytes:
            os.preadv(self._descriptor, [scratch(1)], offset)
        return super().read(offset, size_bytes)


class Direct(_Descriptor):
    """Reads by pread(2) with O_DIRECT, past the page cache: whole blocks around the requested bytes."""

    def __init__(self, path: str, transfer_bytes: int | None = None) -> None:
        super().__init__(path, os.O_DIRECT)
        self._transfer_bytes = min(aligned_up(transfer_bytes or _LARGEST_READ_BYTES), _LARGEST_READ_BYTES)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        check_within(self._path, self.size_bytes, offset, size_bytes)
        first = offset // _ALIGNMENT_BYTES * _ALIGNMENT_BYTES
        view = scratch(aligned_up(offset + size_bytes) - first)
        _fill(self._path, self._descriptor, view, first, self._transfer_bytes, self.size_bytes)
        return view[offset - first : offset - first + size_bytes]


class Mapped(_Descriptor):
    """Reads through a mapping: page faults fetch the bytes, which are copied once."""

    def __init__(self, path: str, transfer_bytes: int | None = None) -> None:
        super().__init__(path)
        self._map = mmap.mmap(self._descriptor, 0, access=mmap.ACCESS_READ) if self.size_bytes else None
        self._step_bytes = transfer_bytes or max(1, self.size_bytes)

    def read(self, offset: int, size_bytes: int) -> memoryview:
        view = scratch_for(self._path, self.size_bytes, offset, size_bytes)
        if self._map is not None:
            with memoryview(self._map) as mapped:
                for start in range(0, size_bytes, self._step_bytes):
                    stop = min(start + self._step_bytes, size_bytes)
                    view[start:stop] = mapped[offset + start : offset + stop]
        return view

    def __exit__(self, *exception: object) -> None:
        if self._map is not None:
            self._map.close()
        super().__exit__(*exception)


def _fill(path: str, descriptor: int, view: memoryview, offset: int, step_bytes: int, end: int | None = None) -> None:
    """Fill `view` with the bytes of the file from `offset` on, at most `step_bytes` per call. If `end` is given, stop there."""
    done, wanted = 0, len(view) if end is None else min(len(view), end - offset)
    while done < wanted:
        try:
            count = os.preadv(descriptor, [view[done : done + step_bytes]], offset + done)
        except OSError as error:
            raise unreadable(path, error) from None
        if count == 0:
            raise damaged(path, f"ends after {offset + done} bytes: it has become shorter")
        done += count


class ReadStream(io.RawIOBase):
    """A stream over an open file for libraries that read files themselves (zip, HDF5, Parquet). It counts the bytes read."""

    def __init__(self, file: OpenFile) -> None:
        self._file, self._position = file, 0
        self.read_bytes = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.size_bytes}[whence]
        return self._position

    def readinto(self, target: "bytearray | memoryview") -> int:  # type: ignore[override]
        """Fill `target` as far as the file has bytes, and return their number."""
        view = memoryview(target).cast("B")
        count = max(0, min(len(view), self._file.size_bytes - self._position))
        if count:
            view[:count] = self._file.read(self._position, count)
        self._position += count
        self.read_bytes += count
        return count
