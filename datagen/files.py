"""Writing data-set files: under a temporary name until whole, hashed on the way, flushed to disk before the name counts."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

PARTIAL_SUFFIX = ".iotwin-partial"


class Piece(msgspec.Struct, frozen=True):
    """A run of bytes of one file that one worker wrote; small files are one piece."""

    name: str  # of the file, relative to the data set's directory
    offset: int  # of the piece's first byte in the file
    size_bytes: int
    sha256: str


class PieceWriter:
    """Writes one piece front to back; `with` flushes it to disk and closes it. `written` hears of every write's bytes."""

    def __init__(self, directory: Path, name: str, written: Callable[[int], None], offset: int = 0) -> None:
        self.path = directory / (name + PARTIAL_SUFFIX)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        self._name, self._offset, self._size_bytes, self._written = name, offset, 0, written
        self._hash = hashlib.sha256()

    def write(self, data: bytes | memoryview) -> None:
        """Append `data`, which must be contiguous; OSError when the disk refuses."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        while len(view):
            count = os.pwrite(self._fd, view, self._offset + self._size_bytes)
            self._size_bytes += count
            self._written(count)
            view = view[count:]

    def piece(self) -> Piece:
        """Return what was written so far."""
        return Piece(self._name, self._offset, self._size_bytes, self._hash.hexdigest())

    def __enter__(self) -> Self:
        """Return the writer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Flush the piece to disk, unless it failed, and close the file."""
        try:
            if kind is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)
