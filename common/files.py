"""Create and replace files and folders. Each appears under its name whole or not at all, and never through another user's link.

Only this module, `common.paths_below` and `common.removal` create, rename and remove files (tests/test_house.py). A file has a
random name until it is whole, so nobody can plant a link under the name that iotwin opens for writing.
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

from iotwin.common.errors import IotwinError, UsageError, reason_of
from iotwin.common.paths_below import folder_of, make_folder_beneath, refuse_planted
from iotwin.common.removal import remove_entry

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO that nobody reads must fail, not wait. It has no effect on a regular file.
_THERE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_LONGEST_STEM = 200  # most bytes of a final name within the temporary name, which may have at most 255 bytes
_PARTIAL = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{16}\.partial", re.DOTALL)


def check_type(path: Path, known: tuple[str, ...]) -> None:
    """Raise UsageError unless `path` has one of the suffixes `known`, such as '.png'."""
    if path.suffix.lower() not in known:
        raise UsageError(f"{path} has no known file type; end its name in {' or '.join(known)}")


def check_output(path: Path) -> None:
    """Check, before a command does its work, that the command can write the file `path`.

    Raises UsageError if `path` is a directory, device or pipe. Raises IotwinError if its directory is missing or not writable.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory; give the name of a file in it")
    _refuse_special(path)
    directory = path.parent
    if not directory.is_dir():
        raise IotwinError(f"{directory} is not a directory, so {path.name} cannot be written there; make it first")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise IotwinError(f"{directory} is not writable, so {path.name} cannot be written there; choose another place")


def _refuse_special(path: Path) -> None:
    """Raise UsageError if `path` is a device, a pipe or in /dev, such as /dev/stdout: root could replace it by a file."""
    if (path.exists() and not path.is_file() and not path.is_dir()) or path.parent.resolve() == Path("/dev"):
        raise UsageError(f"{path} is no regular file, and would be replaced by one; give the name of a file")


def temporary_directory() -> str:
    """Return the directory for temporary files. Raises IotwinError if none can be written to."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError:
        raise IotwinError("no directory for temporary files can be written to; set TMPDIR to one") from None


def temporary_folder(prefix: str) -> Path:
    """Create a new folder for temporary files that only this user can enter, and return its path."""
    return Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_directory()))


@contextmanager
def scratch_folder(directory: Path | None = None) -> Iterator[Path]:
    """Yield a new folder in `directory` (None: in the directory for temporary files), and remove it at the end of the block."""
    with tempfile.TemporaryDirectory(prefix=".iotwin-", dir=directory or temporary_directory()) as folder:
        yield Path(folder)


def partial_of(name: str) -> str | None:
    """Return the final name of the file whose temporary name is `name`; None if `name` is not a temporary name."""
    match = _PARTIAL.fullmatch(name)
    return match["name"] if match else None


def _partial_name(name: str) -> str:
    stem = os.fsdecode(os.fsencode(name)[:_LONGEST_STEM])
    return f".{stem}.{os.urandom(8).hex()}.partial"


@contextmanager
def _renamed_at_the_end(folder: int, name: str) -> Iterator[str]:
    """Yield a temporary name in the folder with the descriptor `folder`. The block must create a file or folder of that name.

    At the end of the block, this file or folder is renamed to `name`. If the block fails, it is removed.
    """
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
    """Yield (descriptor of the folder that contains `path`, name of `path` in this folder). `open_whole` explains `below`."""
    if below is not None:
        with folder_of(below, str(path.relative_to(below)), make=True) as found:
            yield found
        return
    refuse_planted(path.parent)
    # O_PATH, because the user may have the right to write into the folder, but not to read it.
    descriptor = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor, path.name
    finally:
        os.close(descriptor)


@contextmanager
def open_whole(path: Path, durable: bool = False, below: Path | None = None) -> Iterator[BinaryIO]:
    """Yield a new file that replaces `path` at the end of the block. If the block fails, the new file is removed instead.

    `below`: a directory above `path`. Missing folders between the two are created, and none of them may be a link.
    `durable`: content and name are on disk after the block, so that a loss of power leaves the old file or the new one.
    Raises UsageError if `path` is a device, a pipe or a socket, and IotwinError if it cannot be written.
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
    """Return `path` for messages: with /proc/self/fd/N resolved and temporary names replaced by the final ones."""
    if path.parts[:4] != ("/", "proc", "self", "fd") or len(path.parts) < 5:
        return path
    folder = Path(*path.parts[:5]).readlink()
    return Path(*(partial_of(part) or part for part in folder.parts), *path.parts[5:])


@contextmanager
def folder_whole(path: Path, below: Path | None = None) -> Iterator[Path]:
    """Yield a new folder that is renamed to `path` at the end of the block. If the block fails, the folder is removed instead.

    `path` must be missing or an empty folder. The yielded path is below /proc/self/fd, so it is valid in this process only.
    `open_whole` explains `below`. Raises an OSError that names `path`.
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
    """Replace the file `path` by a file with `content`. `open_whole` explains `below` and the errors."""
    with open_whole(path, below=below) as file:
        file.write(content)


def struct_json(document: Any) -> bytes:
    """Return `document`, which may contain msgspec structs, as indented JSON. NaN and infinity become null."""
    return msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n"


def write_json(path: Path, document: Any, indent: int | None = 1, below: Path | None = None) -> None:
    """Replace the file `path` by the JSON `document`, indented, or on one line if `indent` is None; see `open_whole`.

    NaN (such as the loss of a job that diverges) and infinity, which JSON lacks, become null.
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
    """Create the folder `path` and missing folders above it. An existing folder is no error.

    `below`: a directory above `path`. Neither `path` nor a folder between the two may be a link.
    Raises OSError, UsageError if `path` is a file, and IotwinError if a link is not allowed.
    """
    if below is None:
        refuse_planted(path)
        if path.is_file():
            raise UsageError(f"{path} is a file; name a directory")
        path.mkdir(mode, parents=True, exist_ok=True)
    else:
        make_folder_beneath(below, str(path.relative_to(below)))


def new_folder(path: Path, mode: int = 0o777) -> None:
    """Create the folder `path`. Raises FileExistsError if anything of that name exists, even a dangling link."""
    path.mkdir(mode)


def open_new(path: Path, mode: int = 0o666) -> BinaryIO:
    """Create the file `path` and open it for writing. Raises FileExistsError if anything exists there, even a dangling link."""
    return os.fdopen(os.open(path, _NEW, mode), "wb")


def open_rewritten(path: Path) -> BinaryIO:
    """Open `path` for writing, and truncate it. Raises OSError: ELOOP for a link, ENXIO for a FIFO without reader."""
    return os.fdopen(os.open(path, _THERE | os.O_TRUNC, 0o666), "wb")


def open_append(path: Path, mode: int = 0o666) -> int:
    """Return a descriptor that appends to the file `path`, created if missing. Raises the errors of `open_rewritten`."""
    return os.open(path, _THERE | os.O_APPEND, mode)


def rename(path: Path, new: Path) -> None:
    """Rename the file or folder `path` to `new`, replacing an existing file or empty folder `new`. Raises OSError on failure."""
    path.replace(new)


def link(path: Path, new: Path) -> None:
    """Create the hard link `new` to the file `path`. Raises OSError on failure, for example if `new` exists."""
    new.hardlink_to(path)


def write_fully(descriptor: int, content: bytes | memoryview) -> None:
    """Write all of `content` to `descriptor`, by several calls if one writes only a part. Raises OSError if a call fails."""
    while content:
        content = content[os.write(descriptor, content) :]


def append_line(path: Path, line: str) -> None:
    """Append `line` to the file `path` by one system call, so that the lines of several processes do not interleave."""
    descriptor = open_append(path, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def cache_folder() -> Path:
    """Return the folder of iotwin's cache of this user, in $XDG_CACHE_HOME or ~/.cache. The folder may not exist."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iotwin"


def fsync_directory(directory: Path) -> None:
    """Sync `directory`, so that new names in it survive a loss of power. fsync(2) of a file does not sync its name.

    Raises OSError on failure.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def file_system_of(path: Path) -> str:
    """Return the type of the file system of `path`, such as ext4. `path` need not exist."""
    best, kind = "", ""
    resolved = str(path.resolve())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, found
    return kind
