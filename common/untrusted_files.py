"""Read files that a stranger may have made. No other module reads such files.

A file must be regular. It is opened without waiting and read only up to a limit. Failures raise an IotwinError of one line that
names the file. Only a missing file raises FileNotFoundError or NotADirectoryError, since callers often expect it.
"""

import errno
import gzip
import hashlib
import io
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.units import format_size

MOST_JSON_BYTES = 1 << 26
_DIGITS = bytes(ord("0") if chr(byte) in "0123456789" else ord(" ") for byte in range(256))  # maps digits to "0", others to " "
_LONG_NUMBER = b"0" * len(str(2**63))
_BYTE = re.compile(r"\(byte (\d+)\)")  # in msgspec's messages: the offset of an error

T = TypeVar("T")


def _unreadable(path: Path, reason: str | None) -> IotwinError:
    return IotwinError(f"{path} cannot be read: {reason}")


class _Foreign(io.FileIO):
    """A file whose reads raise IotwinError if they fail: at a bad sector, read(2) fails long after open(2) succeeded."""

    def __init__(self, descriptor: int, path: Path) -> None:
        super().__init__(descriptor)
        self._path = path

    def _try(self, read: Callable[[], T]) -> T:
        try:
            return read()
        except OSError as error:
            raise _unreadable(self._path, error.strerror) from None

    def readinto(self, buffer: Any) -> int:
        return self._try(lambda: super(_Foreign, self).readinto(buffer))

    def readall(self) -> bytes:
        return self._try(super().readall)


def open_foreign(path: Path, follow: bool = True) -> io.BufferedReader:
    """Open the regular file `path` for reading. Raises IotwinError for a FIFO, a device or, unless `follow`, a symbolic link."""
    # O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on a regular file.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except ValueError:  # a NUL in the name
        raise _unreadable(path, "no file can have this name") from None
    except OSError as error:
        is_link = not follow and error.errno == errno.ELOOP
        raise _unreadable(path, "it is a symbolic link, which could lead anywhere" if is_link else error.strerror) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _unreadable(path, "it is not a regular file")
    return io.BufferedReader(_Foreign(descriptor, path), 1 << 16)


def open_foreign_unpacked(path: Path) -> BinaryIO:
    """Open `path` for reading; if its name ends in .gz, the returned file yields decompressed bytes.

    Reads of a damaged archive raise OSError, EOFError or zlib.error.
    """
    file = open_foreign(path)
    if path.suffix != ".gz":
        return file
    unpacked = gzip.GzipFile(fileobj=file, mode="rb")
    unpacked.myfileobj = cast(Any, file)  # so that closing `unpacked` closes `file`
    return cast(BinaryIO, unpacked)


def read_foreign(path: Path, most_bytes: int, follow: bool = True) -> bytes:
    """Return the content of `path`. Raises IotwinError if it has more than `most_bytes`."""
    with open_foreign(path, follow) as file:
        size_bytes = os.fstat(file.fileno()).st_size
        content = file.read(size_bytes + 1) if size_bytes <= most_bytes else b""
        if len(content) > size_bytes:  # the file has grown since fstat
            content += file.read(most_bytes + 1 - len(content))
    if max(size_bytes, len(content)) > most_bytes:
        raise IotwinError(f"{path} holds more than {format_size(most_bytes)}, so it is not what it should be")
    return content


def read_foreign_text(path: Path, most_bytes: int = MOST_JSON_BYTES, follow: bool = True) -> str:
    """Return the text of `path`, which has at most `most_bytes`. Raises IotwinError if it is not UTF-8."""
    try:
        return read_foreign(path, most_bytes, follow).decode("utf-8")
    except UnicodeDecodeError as error:
        raise IotwinError(f"{path} cannot be read as text: {error.reason} at byte {error.start}") from None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's content, in hexadecimal."""
    with open_foreign(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_foreign_end(path: Path, most_bytes: int = 1 << 16) -> str:
    """Return the last `most_bytes` of the log `path` as text. Bytes that are not UTF-8 are replaced."""
    with open_foreign(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - most_bytes))
        return file.read(most_bytes).decode("utf-8", "replace")


def read_foreign_lines(path: Path, most_line_bytes: int) -> Iterator[bytes]:
    """Yield the lines of `path` with their line ends. A line longer than `most_line_bytes` is cut to that length."""
    with open_foreign(path) as file:
        is_rest = False
        while line := file.readline(most_line_bytes):
            if not is_rest:
                yield line
            is_rest = not line.endswith(b"\n")


def read_foreign_json(path: Path, most_bytes: int = MOST_JSON_BYTES, follow: bool = True) -> Any:
    """Return the values of the JSON document at `path`, as `decode_foreign` decodes it."""
    return decode_foreign(read_foreign(path, most_bytes, follow), object, path)


def read_foreign_struct(path: Path, kind: type[T], most_bytes: int = MOST_JSON_BYTES, follow: bool = True) -> T:
    """Return the JSON document at `path` as the msgspec type `kind`, as `decode_foreign` decodes it."""
    return decode_foreign(read_foreign(path, most_bytes, follow), kind, path)


def decode_foreign(content: bytes, kind: type[T], name: object) -> T:
    """Return the JSON `content` as the msgspec type `kind` (`object`: as plain values). Error messages call the document `name`.

    Raises IotwinError for NaN, infinity, integers beyond 64 bits, floats beyond 1e308, lone surrogates and deep nesting.
    """
    try:
        if _LONG_NUMBER in content.translate(_DIGITS):
            json.loads(content, parse_int=_int64)
        return cast(T, _decoder(cast(Any, kind)).decode(content))
    except msgspec.ValidationError as error:
        raise IotwinError(f"{name} does not hold what it should: {error}") from None
    except (ValueError, RecursionError) as error:
        byte = _BYTE.search(str(error))
        line = f":{1 + content[: int(byte[1])].count(10)}" if byte else ""
        raise IotwinError(f"{name}{line}: no JSON: {error}") from None


@cache
def _decoder(kind: Any) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)


def _int64(text: str) -> int:
    """Return `text` as an int. Raises ValueError beyond 64 bits: msgspec accepts larger numbers, but numpy and Parquet do not."""
    if len(text) > len(_LONG_NUMBER) + 1 or not -(2**63) <= (value := int(text)) < 2**63:
        raise ValueError(f"the number {text:.30} is beyond 64 bits")
    return value
