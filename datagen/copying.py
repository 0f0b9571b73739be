"""Copy whole files in the cheapest way that their file systems support: by shared blocks, else by a copy inside the kernel."""

import fcntl
import os
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.paths_below import open_beneath
from iotwin.common.untrusted_files import open_foreign
from iotwin.datagen.data_set_files import PARTIAL_SUFFIX, Piece, read_open_piece

_FICLONE = 0x40049409  # linux/fs.h
_CHUNK_BYTES = 64 << 20  # bytes copied between two calls of `written`


@lru_cache(maxsize=1 << 16)
def _checksum(path: Path, size_bytes: int) -> str:
    """Return the checksum of the first `size_bytes` of the file `path`. Results are cached, as files are copied repeatedly."""
    with open_foreign(path) as file:
        return read_open_piece(file, path.name, 0, size_bytes, lambda _: None).xxh3_128


def copy_file(source: Path, size_bytes: int, directory: Path, name: str, written: Callable[[int], None]) -> Piece:
    """Copy `source` to the file `name` in `directory`, under its temporary name. Flush the copy to disk and return its piece.

    `written` is called with the number of bytes of each write. Raises IotwinError if a write fails, or if `source` does not have
    `size_bytes` bytes.
    """
    target = directory / (name + PARTIAL_SUFFIX)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    try:
        opened = open_beneath(directory, name + PARTIAL_SUFFIX, flags, make_folders=True)
        with os.fdopen(opened, "wb", buffering=0) as writer, open_foreign(source) as reader:
            if not _clone(reader.fileno(), writer.fileno()):
                _copy(reader.fileno(), writer.fileno(), size_bytes, written)
            else:
                written(size_bytes)
            os.fsync(writer.fileno())
            copied_bytes = os.fstat(writer.fileno()).st_size
    except OSError as error:
        raise IotwinError(f"{target}: {error.strerror}; make room, then run the same command to go on") from None
    if copied_bytes != size_bytes:
        raise IotwinError(f"{source} changed its size while it was copied; scale again when nothing writes to it")
    return Piece(name, 0, size_bytes, _checksum(source, size_bytes))


def _clone(reader: int, writer: int) -> bool:
    """Make the file `writer` share the blocks of `reader` (reflink). Return False if the file system does not support that."""
    try:
        fcntl.ioctl(writer, _FICLONE, reader)
    except OSError:
        return False
    return True


def _copy(reader: int, writer: int, size_bytes: int, written: Callable[[int], None]) -> None:
    offset = 0
    copy = _within_file_systems
    while offset < size_bytes:
        try:
            count = copy(reader, writer, min(_CHUNK_BYTES, size_bytes - offset), offset)
        except OSError:
            if copy is _between_file_systems:
                raise
            copy = _between_file_systems  # a full disk makes the next copy fail as well, which ends the loop
            continue
        if not count:
            return
        offset += count
        written(count)


def _within_file_systems(reader: int, writer: int, size_bytes: int, offset: int) -> int:
    return os.copy_file_range(reader, writer, size_bytes, offset, offset)


def _between_file_systems(reader: int, writer: int, size_bytes: int, offset: int) -> int:
    os.lseek(writer, offset, os.SEEK_SET)
    return os.sendfile(writer, reader, offset, size_bytes)
