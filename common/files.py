"""Creating and replacing files and folders: whole or not at all, never through a planted link, never over others' files.

This module, `common.beneath` and `common.removal` are the only ones that change what the file system holds; a test of the house
forbids it to all others. What is made has a random name until it is whole. So nobody can put a link where it will be written.
"""

import json
import math
import os
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from iotwin.common.beneath import folder_of, make_folder_beneath, refuse_planted
from iotwin.common.errors import IotwinError, UsageError, reason_of
from iotwin.common.removal import remove_entry

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# Not blocking: a FIFO that nobody reads must not hold us up; of no effect on a file.
_THERE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LONGEST_STEM = 200  # bytes of a name that its temporary name keeps: 255 are allowed
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.partial", re.DOTALL)


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


def temporary_folder(prefix: str) -> Path:
    """Make a new folder for temporary files, which only we can enter, and return its path."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_directory()))


@contextmanager
def scratch_folder(directory: Path | None = None) -> Iterator[Path]:
    """Yield a new folder for temporary files, in `directory` or where such files go, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix=".iotwin-", dir=directory or temporary_directory()) as folder:
        yield Path(folder)


def partial_of(name: str) -> str | None:
    """Return the name that an unfinished file called `name` would have got; None if `name` is no such file's."""
    match = _PARTIAL.fullmatch(name)
    return match["name"] if match else None


def _partial_name(name: str) -> str:
    stem = os.fsdecode(os.fsencode(name)[:_LONGEST_STEM])
    return f".{stem}.{os.urandom(8).hex()}.partial"


@contextmanager
def _renamed_at_the_end(folder: int, name: str) -> Iterator[str]:
    """Yield a new name in `folder`, a descriptor. What the block makes there takes `name`, or is removed if the block fails."""
    partial = _partial_name(name)
    try:
        yield partial
        os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(OSError):
            remove_entry(partial, folder)
        raise


@contextmanager
def _parent_of(path: Path, below: Path | None) -> Iterator[tuple[int, str]]:
    """Yield (descriptor of the folder that `path` is in, its name there); see `open_whole` for `below`."""
    if below is not None:
        with folder_of(below, str(path.relative_to(below)), make=True) as found:
            yield found
        return
    refuse_planted(path.parent)
    # O_PATH: it is enough to be allowed to write into the folder; reading it may be forbidden.
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor, path.name
    finally:
        os.close(descriptor)


@contextmanager
def open_whole(path: Path, durable: bool = False, below: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new file, which takes the place of `path` at the end of the block, or is removed when the block fails.

    `below`: a directory above `path`; folders between them are made, and none of them may be a link.
    `durable`: bytes and name are on disk when the block has ended, so that a loss of power leaves the old file or the new one.
    Raises UsageError when `path` is a device, a pipe or a socket, IotwinError when it cannot be written.
    """
    _refuse_special(path)
    try:
        with (
            _parent_of(path, below) as (folder, name),
            _renamed_at_the_end(folder, name) as partial,
            os.fdopen(os.open(partial, _NEW, 0o666, dir_fd=folder), "wb") as file,
        ):
            yield file
            if durable:
                file.flush()
                os.fsync(file.fileno())
        if durable:
            fsync_directory(path.parent)
    except OSError as error:
        raise IotwinError(f"{_as_named(path)} cannot be written: {reason_of(error)}") from None


def _as_named(path: Path) -> Path:
    """Return the path by which a user knows what is written: not by descriptor, nor by the name of what is unfinished."""
    if path.parts[:4] != ("/", "proc", "self", "fd") or len(path.parts) < 5:
        return path
    folder = Path(*path.parts[:5]).readlink()
    return Path(*(partial_of(part) or part for part in folder.parts), *path.parts[5:])


@contextmanager
def folder_whole(path: Path, below: Path | None = None) -> Iterator[Path]:
    """Yield a new folder, which takes the place of `path` (nothing, or an empty folder) at the end of the block, or is removed.

    The yielded path leads to the folder by descriptor, in this process only. For `below` see `open_whole`.
    Raises OSError, which names `path`.
    """
    try:
        with _parent_of(path, below) as (folder, name), _renamed_at_the_end(folder, name) as partial:
            os.mkdir(partial, dir_fd=folder)
            made = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                yield Path(f"/proc/self/fd/{made}")
            finally:
                os.close(made)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def write_whole(path: Path, content: bytes, below: Path | None = None) -> None:
    """Replace `path` by a file that holds `content`, as `open_whole` does; IotwinError when that fails."""
    with open_whole(path, below=below) as file:
        file.write(content)


def struct_json(document: Any) -> bytes:
    """Return msgspec's structs and what is in them as JSON, a value a line; numbers that JSON lacks become null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def write_json(path: Path, document: Any, indent: int | None = 1, below: Path | None = None) -> None:
    """Write `document` as JSON by `write_whole`: a value a line, or all on one line where `indent` is None.

    Numbers that JSON lacks become null: the loss of a job that diverges is NaN.
    """
    try:
        text = json.dumps(document, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(_without_nan(document), indent=indent)
    write_whole(path, f"{text}\n".encode(), below)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_nan(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def make_folder(path: Path, below: Path | None = None, mode: int = 0o777) -> None:
    """Make the folder `path` and what is missing above it, unless it is there. Raises OSError, IotwinError for a link or file.

    `below`: a directory above `path`; no folder between them, nor `path` itself, may be a link.
    """
    if below is None:
        refuse_planted(path)
        if path.is_file():
            raise UsageError(f"{path} is a file; name a directory")
        path.mkdir(mode, parents=True, exist_ok=True)
    else:
        make_folder_beneath(below, str(path.relative_to(below)))


def new_folder(path: Path, mode: int = 0o777) -> None:
    """Make the folder `path`, where there must be nothing; FileExistsError otherwise, for a link too."""
    path.mkdir(mode)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """Open a new file for writing; FileExistsError when there is anything at `path`, a link too."""
    return os.fdopen(os.open(path, _NEW, mode), "wb")


def open_rewritten(path: Path) -> BinaryIO:
    """Open `path` for writing from its start; what it held is gone. OSError for a link (ELOOP) and an unread FIFO (ENXIO)."""
    return os.fdopen(os.open(path, _THERE | os.O_TRUNC, 0o666), "wb")


def open_append(path: Path, mode: int = 0o666) -> int:
    """Return a descriptor that appends to the file `path`, made if it is missing; OSError as `open_rewritten`."""
    return os.open(path, _THERE | os.O_APPEND, mode)


def rename(path: Path, new: Path) -> None:
    """Give the file or folder at `path` the name `new`; a file or an empty folder of that name is replaced. Raises OSError."""
    path.replace(new)


def link(path: Path, new: Path) -> None:
    """Give the file at `path` the further name `new`, where there must be nothing. Raises OSError."""
    new.hardlink_to(path)


def append_line(path: Path, line: str) -> None:
    """Append a line to a file by one call, so that lines of several processes do not interleave."""
    descriptor = open_append(path, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """Return the folder of the user's caches of iotwin, in $XDG_CACHE_HOME or ~/.cache. It may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iotwin"


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
