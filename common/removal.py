"""Remove files and folders, but never follow links. Where strangers may have put files, remove only listed names.

No other module removes files (tests/test_house.py).
"""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from iotwin.common.paths_below import folder_of


def remove_file(path: Path) -> None:
    """Remove the file or link at `path` if it exists. Raises OSError on failure and for a folder."""
    with suppress(FileNotFoundError):
        path.unlink()


def remove_entry(name: str | Path, folder: int | None = None) -> None:
    """Remove the file, link or whole folder `name`, relative to the folder with the descriptor `folder`. Raises OSError."""
    try:
        os.unlink(name, dir_fd=folder)
    except IsADirectoryError:
        import shutil  # takes 10 ms, since it imports the archive formats

        shutil.rmtree(name, dir_fd=folder)


def remove_own(path: Path) -> None:
    """Remove the file, link or whole folder at `path`, which only iotwin can have made. Failures are ignored."""
    with suppress(OSError):
        remove_entry(path)


def remove_empty(folder: Path) -> bool:
    """Remove `folder` if it is empty. Return True if it no longer exists."""
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def remove_listed(directory: Path, names: Iterable[str]) -> None:
    """Remove the entries `names` below `directory`: files, links and whole folders. A missing entry is no error.

    Raises IotwinError if a name leads out of `directory`, by itself or through a link.
    """
    for name in names:
        with suppress(FileNotFoundError, NotADirectoryError), folder_of(directory, name) as (folder, last):
            remove_entry(last, folder)


def unlink_beneath(directory: Path, name: str) -> None:
    """Remove the file or link `name` below `directory` if it exists. Raises the errors of `folder_of`."""
    with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), folder_of(directory, name) as (folder, last):
        os.unlink(last, dir_fd=folder)
