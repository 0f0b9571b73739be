"""Write and read the tensors of one rank: one raw file with their bytes, and an index in JSON."""

import math
import mmap
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.direct_io import DirectWriter
from iotwin.common.errors import IotwinError
from iotwin.common.files import open_new

ITEM_BYTES = {
    "bool": 1, "uint8": 1, "int8": 1, "int16": 2, "uint16": 2, "float16": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "float32": 4,
    "int64": 8, "uint64": 8, "float64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
_CHUNK_BYTES = 1 << 20  # small enough to stay in a processor's cache between its copy and its checksum
_BUFFER_BYTES = 4 << 20  # size of one write
ALIGNMENT = 64  # bytes; vector instructions require it of every tensor's first byte
_MOST_INDEX_BYTES = 256 << 20
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_kept_buffers: list[NDArray[np.uint8]] = []


class Tensor(NamedTuple):
    """A tensor: name, element type, shape, and `data`, its elements in C order as bytes."""

    name: str
    dtype: str  # a key of ITEM_BYTES
    shape: tuple[int, ...]
    data: NDArray[np.uint8]


class Entry(msgspec.Struct):
    """The type, shape and position of a tensor in its raw file."""

    name: str
    dtype: str
    shape: Annotated[tuple[_Natural, ...], msgspec.Meta(max_length=64)]  # torch and numpy have at most 64 dimensions
    offset: _Natural
    size_bytes: _Natural


class Packed(NamedTuple):
    """The whole `content` of a raw file: tensors at the positions that `entries` lists, with zeros between the tensors."""

    entries: list[Entry]
    content: NDArray[np.uint8]


class Index(msgspec.Struct):
    """The index of a raw file: the file's tensors, and the plain values stored with them."""

    tensors: list[Entry]
    values: dict[str, Any]


class Damaged(Exception):
    """Raised if a file is not as it was written. The text describes the damage without the file's name."""


def crc32c(content: "bytes | NDArray[np.uint8]", before: int = 0) -> int:
    """Return the CRC-32C of `content`. `before`: the CRC-32C of preceding bytes, which the result then includes.

    Raises IotwinError if google-crc32c is not installed.
    """
    try:
        import google_crc32c
    except ModuleNotFoundError:
        raise IotwinError("checkpoints need the Python package google-crc32c; install it with pip") from None
    return int(google_crc32c.extend(before, content))


def write_tensors(path: Path, tensors: Iterable[Tensor] | Packed) -> tuple[list[Entry], int, int]:
    """Write and fsync `tensors` as the new file `path`. Return (entries, file size in bytes, CRC-32C of the file)."""
    with open_new(path) as file, _write_buffer() as buffer:
        appender = _Appender(file.fileno(), buffer)
        if isinstance(tensors, Packed):
            entries = tensors.entries
            appender.append(tensors.content)
        else:
            entries = [_append(appender, tensor) for tensor in tensors]
        appender.finish()
        os.fsync(file.fileno())
    return entries, appender.size_bytes, appender.checksum


def _append(appender: "_Appender", tensor: Tensor) -> Entry:
    name, dtype, shape, data = tensor
    appender.append(np.zeros(-appender.size_bytes % ALIGNMENT, np.uint8))
    entry = Entry(name, dtype, shape, appender.size_bytes, data.size)
    appender.append(data)
    return entry


@contextmanager
def _write_buffer() -> Iterator[NDArray[np.uint8]]:
    """Yield a page-aligned buffer. Buffers are reused, since new ones would take a third of a small checkpoint's CPU time."""
    try:
        buffer = _kept_buffers.pop()  # not after a check of the length: another thread may take the last buffer in between
    except IndexError:
        pages = mmap.mmap(-1, _BUFFER_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # not shared with forked processes
        buffer = np.frombuffer(pages, np.uint8)
    try:
        yield buffer
    finally:
        _kept_buffers.append(buffer)


class _Appender:
    """Collects bytes in a buffer, and writes the buffer past the page cache when it is full.

    This avoids the copy into the page cache, which is most of a write's cost, and does not evict training data from the cache.
    """

    def __init__(self, descriptor: int, buffer: NDArray[np.uint8]) -> None:
        self._file = DirectWriter(descriptor)
        self._buffer = buffer
        self._filled = 0
        self.size_bytes = 0
        self.checksum = 0

    def append(self, data: NDArray[np.uint8]) -> None:
        """Append `data`. Page-aligned parts that are as long as the buffer are written directly, without a copy."""
        self.size_bytes += data.size
        if not self._filled and data.size >= _BUFFER_BYTES and not data.ctypes.data % mmap.PAGESIZE:
            data = self._write_in_place(data)
        while data.size:
            chunk = data[: min(_CHUNK_BYTES, _BUFFER_BYTES - self._filled)]
            self._buffer[self._filled : self._filled + chunk.size] = chunk
            self.checksum = crc32c(chunk, self.checksum)
            self._filled += chunk.size
            data = data[chunk.size :]
            if self._filled == _BUFFER_BYTES:
                self._write()

    def finish(self) -> None:
        if self._filled:
            self._write()

    def _write_in_place(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        whole = data.size - data.size % _BUFFER_BYTES
        for begin in range(0, whole, _BUFFER_BYTES):
            part = data[begin : begin + _BUFFER_BYTES]
            self.checksum = crc32c(part, self.checksum)
            self._write_all(part)
        return data[whole:]

    def _write(self) -> None:
        filled, self._filled = self._filled, 0
        self._write_all(self._buffer[:filled])

    def _write_all(self, left: NDArray[np.uint8]) -> None:
        while left.size:
            left = left[self._file.write([left.data]) :]


def write_durably(path: Path, content: bytes) -> tuple[int, int]:
    """Write and fsync `content` as the new file `path`. Return its size in bytes and its CRC-32C."""
    with open_new(path) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return len(content), crc32c(content)


@contextmanager
def _open_regular(path: Path) -> Iterator[int]:
    """Yield a descriptor of the regular file `path`.

    Raises Damaged if `path` is a pipe or a link, if it cannot be opened, or if the block raises an OSError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise Damaged("is no regular file")
            yield descriptor
        finally:
            os.close(descriptor)
    except OSError as error:
        raise Damaged(os.strerror(error.errno or 0).lower()) from None


def read_small(path: Path, most_bytes: int = _MOST_INDEX_BYTES) -> bytes:
    """Return the content of the regular file `path`. Raises Damaged if it cannot be read or has more than `most_bytes`."""
    with _open_regular(path) as descriptor:
        size_bytes = os.fstat(descriptor).st_size
        if size_bytes > most_bytes:
            raise Damaged(f"has {size_bytes} bytes, more than any such file")
        with open(descriptor, "rb", closefd=False) as file:
            return file.read()


def size_of(path: Path) -> int:
    """Return the size in bytes of the regular file `path`. Raises Damaged if `path` is no regular file."""
    with _open_regular(path) as descriptor:
        return os.fstat(descriptor).st_size


def checksum_of(path: Path) -> int:
    """Return the CRC-32C of the file `path`. Raises Damaged if it cannot be read."""
    checksum, buffer = 0, np.empty(_CHUNK_BYTES, np.uint8)
    with _open_regular(path) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
        while count := file.readinto(buffer.data):
            checksum = crc32c(buffer[:count], checksum)
    return checksum


def read_checked(path: Path, size_bytes: int, checksum: int) -> NDArray[np.uint8]:
    """Return the bytes of the file `path`. Raises Damaged if its size is not `size_bytes` or its CRC-32C is not `checksum`."""
    if (found := size_of(path)) != size_bytes:  # check before allocating memory for a size that may be wrong
        raise Damaged(f"has {found} bytes instead of {size_bytes}")
    content = np.empty(size_bytes, np.uint8)
    at = computed = 0
    with _open_regular(path) as descriptor, open(descriptor, "rb", buffering=0, closefd=False) as file:
        while at < size_bytes and (count := file.readinto(content[at : at + _CHUNK_BYTES].data)):
            computed = crc32c(content[at : at + count], computed)
            at += count
    if at < size_bytes or computed != checksum:
        raise Damaged("does not have the checksum of the manifest")
    return content


def decode_index(content: bytes) -> Index:
    """Return the index in the JSON `content`. Raises Damaged if it is not an index."""
    try:
        return msgspec.json.decode(content, type=Index)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Damaged(f"is no index of tensors ({error})") from None


def check_index(index: Index, size_bytes: int) -> None:
    """Raise Damaged if a tensor of `index` has an unknown type or a wrong size, or ends beyond a raw file of `size_bytes`."""
    for entry in index.tensors:
        item_bytes = ITEM_BYTES.get(entry.dtype)
        if item_bytes is None:
            raise Damaged(f"tensor {entry.name!r} has the unknown type {entry.dtype!r}")
        if math.prod(entry.shape) * item_bytes != entry.size_bytes or entry.offset + entry.size_bytes > size_bytes:
            raise Damaged(f"tensor {entry.name!r} does not lie in its file")


def tensors_in(index: Index, content: NDArray[np.uint8]) -> Iterator[Tensor]:
    """Yield the tensors of a raw file as views of its `content`. Raises Damaged if `index` does not fit the content."""
    check_index(index, content.size)
    for entry in index.tensors:
        yield Tensor(entry.name, entry.dtype, entry.shape, content[entry.offset : entry.offset + entry.size_bytes])
