"""Removing files and folders: never what a link leads to, and of what others may have put there only what a list of ours names.

No other module removes anything; a test of the house holds that.
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from iotwin.common.beneath import folder_of


def remove_file(path: Path) -> None:
    """Remove the file or link at `path`, if there is one; OSError when that fails, or for a folder."""
    with suppress(FileNotFoundError):
        path.unlink()


def remove_entry(name: str | Path, folder: int | None = None) -> None:
    """Remove the file, link or whole folder `name`, in the folder of which `folder` is a descriptor. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        import shutil  # with its archives, 10 ms that only this needs

        shutil.rmtree(name, dir_fd=folder)


def remove_own(path: Path) -> None:
    """Remove the file, link or whole folder at `path`, which only we can have made; nothing when it is not there.

    What cannot be removed stays, without an error: nobody but us needs it gone.
    """
    with suppress(OSError):
        remove_entry(path)


def remove_empty(folder: Path) -> bool:
    """Remove `folder` if it is empty, and return whether it is gone."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_listed(directory: Path, names: Iterable[str]) -> None:
    """Remove those entries below `directory` that `names` lists: files, links, and folders with all that is in them.

    A name that leads out of the directory, by itself or through a link, raises IotwinError; a missing entry is no error.
    """
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError), folder_of(directory, name) as (folder, last):
            remove_entry(last, folder)


def unlink_beneath(directory: Path, name: str) -> None:
    """Remove the file (or link) `name` below `directory`, if it is there; errors as `folder_of`."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), folder_of(directory, name) as (folder, last):
        os.unlink(last, dir_fd=folder)
