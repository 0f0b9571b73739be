"""Write the files of data sets with checksums. A file has a temporary name until it is whole and flushed to disk.

Checksums are XXH3 of 128 bits, which detect torn, swapped and decayed bytes at a thirtieth of the cost of SHA-256.
"""

import ctypes
import io
import os
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from typing import BinaryIO, Self

import msgspec
import xxhash

from iotwin.common.errors import IotwinError
from iotwin.common.paths_below import open_beneath, rename_beneath, size_beneath

PARTIAL_SUFFIX = ".iotwin-partial"
_READ_BYTES = 1 << 20
_FLUSH_EVERY_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h
_libc = ctypes.CDLL(None)


class Piece(msgspec.Struct, frozen=True):
    """A contiguous part of a file that one worker wrote. A small file is one piece."""

    name: str  # path of the file relative to the data set's directory
    offset: int  # offset of the piece's first byte in the file
    size_bytes: int
    xxh3_128: str = ""  # hexadecimal; empty if version 1 of the generator, which had another checksum, wrote it


class PieceWriter:
    """Writes one piece from front to back. The end of the `with` block flushes the piece to disk and closes its file.

    `written` is called with the number of bytes of every write.
    """

    def __init__(self, directory: Path, name: str, written: Callable[[int], None], offset: int = 0) -> None:
        self.path = directory / (name + PARTIAL_SUFFIX)
        self._fd = open_beneath(directory, name + PARTIAL_SUFFIX, os.O_WRONLY | os.O_CREAT, make_folders=True)
        self._name, self._offset, self._size_bytes, self._written = name, offset, 0, written
        self._flushed_bytes = 0
        self._hash = xxhash.xxh3_128()

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`, which must be contiguous. Raises IotwinError if the write fails, for example if the disk is full."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        while len(view):
            try:
                count = os.pwrite(self._fd, view, self._offset + self._size_bytes)
            except OSError as error:
                raise IotwinError(f"{self.path}: {error.strerror}; make room, then run the same command to go on") from None
            self._size_bytes += count
            self._written(count)
            view = view[count:]
        if self._size_bytes - self._flushed_bytes >= _FLUSH_EVERY_BYTES:
            # The disk works while the next bytes are computed. A failure is ignored, since fsync at the end writes the rest.
            start, length = self._offset + self._flushed_bytes, self._size_bytes - self._flushed_bytes
            _libc.sync_file_range(self._fd, ctypes.c_int64(start), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)
            self._flushed_bytes = self._size_bytes

    def piece(self) -> Piece:
        """Return the entry of the piece with the size and checksum of what was written so far."""
        return Piece(self._name, self._offset, self._size_bytes, self._hash.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: type[BaseException] | None, *details: object) -> None:
        try:
            if failed is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


class WriteStream(io.RawIOBase):
    """A file object that writes to a PieceWriter, for libraries that write from front to back."""

    def __init__(self, sink: PieceWriter) -> None:
        self._sink, self._position = sink, 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._position

    def write(self, data: "memoryview | bytes") -> int:  # type: ignore[override]
        """Append all of `data` and return its size in bytes."""
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._position += len(view)
        return len(view)


class Publisher:
    """Renames the files in `directory` from their temporary to their final names, each once all its pieces are written."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._pending_bytes: dict[str, int] = {}

    def add(self, piece: Piece, file_bytes: int | None) -> None:
        """Record a finished piece, and publish its file if it is whole now. `file_bytes`: its size; None if it is one piece."""
        if file_bytes is not None:
            done_bytes = self._pending_bytes.get(piece.name, 0) + piece.size_bytes
            self._pending_bytes[piece.name] = done_bytes
            if done_bytes < file_bytes:
                return
        if self._partial_bytes(piece.name) is not None:  # None if an interrupted run has published it
            self.publish(self._directory / (piece.name + PARTIAL_SUFFIX), piece.name)

    def publish(self, partial: Path, name: str) -> None:
        """Rename the whole file at `partial` to its final name `name`, in the same folder."""
        rename_beneath(self._directory, name + PARTIAL_SUFFIX, name)

    def final_bytes(self, name: str) -> int | None:
        """Return the size in bytes of the published file `name`; None if there is none."""
        return size_beneath(self._directory, name)

    def _partial_bytes(self, name: str) -> int | None:
        return size_beneath(self._directory, name + PARTIAL_SUFFIX)

    def has(self, piece: Piece) -> bool:
        """Return True if the piece's file exists, under its final or temporary name, and is long enough to contain the piece."""
        size_bytes = self.final_bytes(piece.name)
        if size_bytes is None:
            size_bytes = self._partial_bytes(piece.name)
        return size_bytes is not None and size_bytes >= piece.offset + piece.size_bytes


def read_piece_beneath(directory: Path, piece: Piece, read: Callable[[int], None]) -> Piece:
    """Read `piece` of the data set in `directory`. Return it with the size and checksum that it has on disk.

    Raises IotwinError if the name of its file leads out of `directory`.
    """
    with os.fdopen(open_beneath(directory, piece.name, os.O_RDONLY), "rb", buffering=0) as file:
        return read_open_piece(file, piece.name, piece.offset, piece.size_bytes, read)


def read_open_piece(file: BinaryIO | FileIO, name: str, offset: int, size_bytes: int, read: Callable[[int], None]) -> Piece:
    """Read `size_bytes` of the open `file` from `offset` on. Return them as a Piece, which is shorter if the file ends early.

    `read` is called with the number of bytes of each read.
    """
    digest = xxhash.xxh3_128()
    left_bytes = size_bytes
    file.seek(offset)
    while left_bytes and (block := file.read(min(_READ_BYTES, left_bytes))):
        digest.update(block)
        left_bytes -= len(block)
        read(len(block))
    return Piece(name, offset, size_bytes - left_bytes, digest.hexdigest())
