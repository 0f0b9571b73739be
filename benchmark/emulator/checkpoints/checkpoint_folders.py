"""Commit and remove checkpoints that are folders. An unfinished folder and one under removal have temporary names."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from iotwin.common.files import fsync_directory
from iotwin.common.paths_below import folder_of, normal

_UNFINISHED, _LEAVING = ".tmp", ".gone"


def folder_name(name: str) -> str | None:
    """Return the outermost folder in the path `name`; None if `name` contains no folder."""
    folder, inside, _ = normal(name).partition("/")
    return folder if inside else None


def unfinished(name: str) -> str:
    """Return the temporary path of the file `name`, which it has until its checkpoint folder is complete and renamed."""
    return _below(name, _UNFINISHED)


def leaving(name: str) -> str:
    """Return the temporary path of the file `name`, which it has while its checkpoint folder is removed."""
    return _below(name, _LEAVING)


def _below(name: str, suffix: str) -> str:
    folder = folder_name(name)
    return name if folder is None else f"{folder}{suffix}/{normal(name).removeprefix(f'{folder}/')}"


def commit(directory: Path, folder: str, sync: bool) -> None:
    """Rename `folder`, whose files are all written, to its final name. Raises OSError on failure.

    If `sync` is set, the names of its files and its new name survive a loss of power.
    """
    with folder_of(directory, folder) as (parent, last):
        if sync:
            fsync_directory(directory / f"{folder}{_UNFINISHED}")
        os.rename(f"{last}{_UNFINISHED}", last, src_dir_fd=parent, dst_dir_fd=parent)
    if sync:
        fsync_directory(directory)


def remove(directory: Path, folder: str, own: Collection[str]) -> bool:
    """Remove `folder` and return True. If it contains other files than `own`, keep it and return False."""
    with suppress(OSError), folder_of(directory, folder) as (parent, last):
        inside = [path for path in (directory / folder).rglob("*") if not path.is_dir() or path.is_symlink()]
        if any(str(path.relative_to(directory)) not in own for path in inside):
            return False
        os.rename(last, f"{last}{_LEAVING}", src_dir_fd=parent, dst_dir_fd=parent)
        shutil.rmtree(f"{last}{_LEAVING}", dir_fd=parent)
    return not (directory / folder).exists()
