"""Writing results: refused early when it cannot work, never half-written under the final name, never over others' files."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from common.errors import IotwinError, UsageError


def check_type(path: Path, known: tuple[str, ...]) -> None:
    """Raise UsageError unless the name of `path` ends in one of `known` (such as '.png')."""
    if path.suffix.lower() not in known:
        raise UsageError(f"{path} has no known file type; end its name in {' or '.join(known)}")


def check_output(path: Path) -> None:
    """Raise before any work is done: UsageError when `path` is no name for a file, IotwinError when none can be written there."""
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give the name of a file in it")
    _refuse_special(path)
    directory = path.parent
    if not directory.is_dir():
        raise IotwinError(f"{directory} is not a directory, so {path.name} cannot be written there; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise IotwinError(f"{directory} is not writable, so {path.name} cannot be written there; choose another place")


def _refuse_special(path: Path) -> None:
    """Raise UsageError for what is no file: root could replace a device or a pipe by one, and /dev/stdout, which is a link."""
    if (path.exists() and not path.is_file() and not path.is_dir()) or path.parent.resolve() == Path("/dev"):
        raise UsageError(f"{path} is no regular file, and would be replaced by one; give the name of a file")


def temporary_directory() -> str:
    """Return the directory for temporary files; IotwinError when no place for them takes any."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise IotwinError("no directory for temporary files can be written to; set TMPDIR to one") from None


@contextmanager
def made_whole(path: Path, partial: Path | None = None) -> Iterator[Path]:
    """Yield the name under which a file or folder is made, `partial` (default: `path`.partial); rename it to `path` at the end.

    When the block or the renaming fails, what was made is removed; what was at `path` stays. Errors are the caller's to tell.
    """
    partial = partial or path.with_name(f"{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            _remove(partial)
        raise


def _remove(path: Path) -> None:
    if path.is_dir():
        import shutil  # with its archives, 10 ms that only this needs

        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


@contextmanager
def open_whole(path: Path, durable: bool = False) -> Iterator[BinaryIO]:
    """Yield a file under a temporary name in the same directory; rename it to `path` at the end, or remove it when that fails.

    UsageError when `path` is a device, a pipe or a socket, IotwinError when it cannot be written.
    `durable`: bytes and name are on disk when the block has ended, so that a loss of power leaves the old file or the new one.
    """
    _refuse_special(path)
    try:
        with made_whole(path, path.with_name(f".{path.name}.{os.getpid()}.partial")) as partial, partial.open("wb") as file:
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if durable:
            fsync_directory(path.parent)
    except OSError as error:
        raise IotwinError(f"{path} cannot be written: {error.strerror or error}") from None


def write_whole(path: Path, content: bytes) -> None:
    """Write `content` under a temporary name in the same directory, then rename it to `path`; IotwinError when that fails."""
    with open_whole(path) as file:
        file.write(content)


def struct_json(document: Any) -> bytes:
    """Return msgspec's structs and what is in them as JSON, a value a line; numbers that JSON lacks become null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def write_json(path: Path, document: Any, indent: int | None = 1) -> None:
    """Write `document` as JSON by `write_whole`: a value a line, or all on one line where `indent` is None."""
    write_whole(path, (json.dumps(document, indent=indent) + "\n").encode())


def claim_directory(directory: Path, what: str, is_ours: Callable[[], bool], force: bool) -> bool:
    """Make `directory`, or check that it is empty or an earlier `what` that `force` may replace; return whether it is the latter.

    Raises UsageError when it is a file, holds anything else, or is ours without `force`.
    """
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; choose another directory")
    if directory.exists() and any(directory.iterdir()):
        if not is_ours():
            raise UsageError(f"{directory} holds other files; choose another directory")
        if not force:
            raise UsageError(f"{directory} holds an earlier {what}; choose another directory or add --force to replace it")
        return True
    directory.mkdir(parents=True, exist_ok=True)
    return False


def fsync_directory(directory: Path) -> None:
    """Make the names in `directory` last through a loss of power, which fsync(2) of a file does not; OSError when that fails."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system_of(path: Path) -> str:
    """Return the type of the file system that `path` is or will be on."""
    best, kind = "", ""
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, found
    return kind
