"""Writing a result's file: refused early when it cannot work, never half-written under its final name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from tracing_tools.trace.errors import IotwinError, UsageError


def check_type(path: Path, known: tuple[str, ...]) -> None:
    """Raise UsageError unless the name of `path` ends in one of `known` (such as '.png')."""
    if path.suffix.lower() not in known:
        raise UsageError(f"{path} has no known file type; end its name in {' or '.join(known)}")


def check_output(path: Path) -> None:
    """Raise before any work is done: UsageError when `path` is a directory, IotwinError when it cannot be written there."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give the name of a file in it")
    directory = path.parent
    if not directory.is_dir():
        raise IotwinError(f"{directory} is not a directory, so {path.name} cannot be written there; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise IotwinError(f"{directory} is not writable, so {path.name} cannot be written there; choose another place")


@contextmanager
def open_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file under a temporary name in the same directory; rename it to `path` at the end, or remove it when that fails."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except OSError as error:
        raise IotwinError(f"{path} cannot be written: {error.strerror or error}") from None
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name in the same directory, then rename it to `path`; IotwinError when that fails."""
    with open_whole(path) as file:
        file.write(content)
