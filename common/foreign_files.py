"""Files that somebody else may have made: opened without waiting for anybody, only if they are files, and read up to a limit."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

from common.errors import IotwinError

MOST_JSON_BYTES = 1 << 26


def open_foreign(path: Path, follow: bool = True) -> BinaryIO:
    """Open `path` for reading; IotwinError when it is a FIFO, a device or a directory, or (not `follow`) a symbolic link.

    FileNotFoundError and NotADirectoryError are the caller's to word; any other failure is an IotwinError.
    """
    # O_NONBLOCK: a FIFO that nobody writes to must not hold us up; to a regular file it makes no difference.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError):
        raise
    except OSError as error:
        is_link = error.errno == errno.ELOOP and not follow
        reason = "it is a symbolic link, which could lead anywhere" if is_link else error.strerror
        raise IotwinError(f"{path} cannot be read: {reason}") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise IotwinError(f"{path} cannot be read: it is not a regular file")
    return os.fdopen(descriptor, "rb")


def read_foreign(path: Path, most_bytes: int, follow: bool = True) -> bytes:
    """Return the content of `path`, as `open_foreign` opens it; IotwinError when it holds more than `most_bytes`."""
    with open_foreign(path, follow) as file:
        content = file.read(most_bytes + 1)
    if len(content) > most_bytes:
        raise IotwinError(f"{path} holds more than {most_bytes >> 20} MiB, so it is not what it should be")
    return content


def read_foreign_json(path: Path, most_bytes: int = MOST_JSON_BYTES, follow: bool = True) -> Any:
    """Return the JSON document at `path`; IotwinError when it is none, FileNotFoundError when there is no file."""
    try:
        return json.loads(read_foreign(path, most_bytes, follow))
    except (ValueError, RecursionError) as error:
        raise IotwinError(f"{path} is not JSON: {str(error).splitlines()[0]}") from None
