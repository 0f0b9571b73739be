"""Checkpoints that are folders: written under a temporary name, renamed when all of one is there; renamed again to be removed."""

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from common.beneath import folder_of, normal
from common.files import fsync_directory

_UNFINISHED, _LEAVING = ".tmp", ".gone"


def folder_name(name: str) -> str | None:
    """Return the folder that the file `name` is in, the outermost; None if it is in none."""
    folder, inside, _ = normal(name).partition("/")
    return folder if inside else None


def unfinished(name: str) -> str:
    """Return the name of a file of a folder until that is whole."""
    return _below(name, _UNFINISHED)


def leaving(name: str) -> str:
    """Return the name of a file of a folder that is being removed."""
    return _below(name, _LEAVING)


def _below(name: str, suffix: str) -> str:
    folder = folder_name(name)
    return name if folder is None else f"{folder}{suffix}/{normal(name).removeprefix(f'{folder}/')}"


def commit(directory: Path, folder: str, sync: bool) -> None:
    """Give `folder`, all of whose files are written, its name; `sync`: for good. OSError when that fails."""
    with folder_of(directory, folder) as (parent, last):
        if sync:
            fsync_directory(directory / f"{folder}{_UNFINISHED}")
        os.rename(f"{last}{_UNFINISHED}", last, src_dir_fd=parent, dst_dir_fd=parent)
    if sync:
        fsync_directory(directory)


def remove(directory: Path, folder: str, own: Collection[str]) -> bool:
    """Remove `folder` and return whether it is gone: not if anything but the files `own` is in it, or below it."""
    with suppress(OSError), folder_of(directory, folder) as (parent, last):
        inside = [path for path in (directory / folder).rglob("*") if not path.is_dir() or path.is_symlink()]
        if any(str(path.relative_to(directory)) not in own for path in inside):
            return False
        os.rename(last, f"{last}{_LEAVING}", src_dir_fd=parent, dst_dir_fd=parent)
        shutil.rmtree(f"{last}{_LEAVING}", dir_fd=parent)
    return not (directory / folder).exists()
