"""Open, measure, rename and create files below a directory, by names that a stranger may have chosen.

The names come from manifests, journals, recipes and twins. A name must not lead out of the directory: not by `..`, not by a
leading slash, and not through a symbolic link. So every folder between the directory and the file is opened without following
links (openat(2), O_NOFOLLOW). The directory itself may be a link, since the user chose it.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from iotwin.common.errors import IotwinError

_LONGEST_NAME, _LONGEST_PART = 4095, 240  # in bytes: PATH_MAX, and NAME_MAX minus the suffix of unfinished files


def stays_within(name: str) -> bool:
    """Return True if `name` is a relative path that remains below the directory to which it is joined."""
    try:
        parts = os.fsencode(name).split(b"/")
    except UnicodeEncodeError:
        return False
    if name[:1] == "/" or b".." in parts or "\0" in name or sum(map(len, parts)) + len(parts) > _LONGEST_NAME:
        return False
    return any(part not in (b"", b".") for part in parts) and max(map(len, parts)) <= _LONGEST_PART


def normal(name: str) -> str:
    """Return the path `name` without empty parts and parts ".": ``./a//b`` becomes a/b."""
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def refuse_planted(path: Path) -> None:
    """Raise IotwinError if `path` or a folder above it is a symbolic link that another user made.

    Links of root and of the user who called sudo are allowed.
    """
    caller = os.environ.get("SUDO_UID", "")
    own = {0, os.geteuid(), int(caller) if caller.isdecimal() else 0}
    for above in (*reversed(path.absolute().parents), path.absolute()):
        with suppress(OSError):
            found = os.lstat(above)
            if stat.S_ISLNK(found.st_mode) and found.st_uid not in own:
                raise IotwinError(f"{above} is a link that another user made; give the name of the directory that it leads to")


@contextmanager
def folder_of(directory: Path, name: str, make: bool = False) -> Iterator[tuple[int, str]]:
    """Yield (descriptor of the folder that contains `name`, last part of `name`). `make`: create missing folders.

    Raises IotwinError if `name` leads out of `directory`, by itself or through a link. Raises OSError if openat(2) fails.
    """
    if not stays_within(name):
        raise IotwinError(f"{directory}: the name {name!r} leads out of it; nothing was done with it")
    *folders, last = normal(name).split("/")
    if make:
        directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            inner = _open_folder(directory, name, descriptor, folder, make)
            os.close(descriptor)
            descriptor = inner
        yield descriptor, last
    finally:
        os.close(descriptor)


def _open_folder(directory: Path, name: str, descriptor: int, folder: str, make: bool) -> int:
    if make:
        with suppress(FileExistsError):
            os.mkdir(folder, dir_fd=descriptor)
    try:
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
    except NotADirectoryError:
        if stat.S_ISLNK(os.lstat(folder, dir_fd=descriptor).st_mode):
            raise IotwinError(f"{directory}: {name!r} leads through the link '{folder}'; replace it by a real folder") from None
        raise


def make_folder_beneath(directory: Path, name: str) -> None:
    """Create the folder `name` below `directory`, and missing folders above it. Raises the errors of `folder_of`."""
    with folder_of(directory, f"{name}/made", make=True):
        pass


def open_beneath(directory: Path, name: str, flags: int, *, make_folders: bool = False) -> int:
    """Return a descriptor of the regular file `name` below `directory`, opened with `flags`. A new file has mode 0666.

    Raises IotwinError if `name` leads out of `directory`, is a link or is not a regular file. Raises OSError if openat(2) fails.
    """
    with folder_of(directory, name, make_folders) as (folder, last):
        try:
            # O_NONBLOCK: opening a FIFO must not wait for a writer. It has no effect on a regular file.
            descriptor = os.open(last, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=folder)
        except OSError:
            if _kind_is_wrong(last, folder):
                raise _no_file(directory, name) from None
            raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise _no_file(directory, name)
    return descriptor


def _kind_is_wrong(name: str, folder: int) -> bool:
    try:
        return not stat.S_ISREG(os.lstat(name, dir_fd=folder).st_mode)
    except OSError:
        return False


def _no_file(directory: Path, name: str) -> IotwinError:
    return IotwinError(f"{directory}: {name!r} is a link or no file; remove it, or choose another directory")


def size_beneath(directory: Path, name: str) -> int | None:
    """Return the size in bytes of the file `name` below `directory`; None if it does not exist or is not a regular file."""
    try:
        with folder_of(directory, name) as (folder, last):
            found = os.lstat(last, dir_fd=folder)
    except OSError:
        return None
    return found.st_size if stat.S_ISREG(found.st_mode) else None


def rename_beneath(directory: Path, name: str, new_name: str) -> None:
    """Rename the file `name` below `directory` to the last part of `new_name`, in the same folder. Raises OSError on failure."""
    with folder_of(directory, name) as (folder, last):
        os.replace(last, normal(new_name).rpartition("/")[2], src_dir_fd=folder, dst_dir_fd=folder)


def read_beneath(directory: Path, name: str, limit_bytes: int) -> bytes:
    """Return the content of the file `name` below `directory`. Raises IotwinError if it has more than `limit_bytes`."""
    with os.fdopen(open_beneath(directory, name, os.O_RDONLY), "rb") as file:
        content = file.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise IotwinError(f"{directory / name}: has more than {limit_bytes >> 20} MiB, which no file of ours has; is it one?")
    return content
