"""Folders that a command fills. It claims a folder if that is new or empty; later it replaces only what it made there.

The list is `.iotwin.json` in the folder. It names the command's kind of result and every entry that the command made. `--force`
removes those entries and nothing else, however much another folder looks like ours. Two kinds of result follow another rule:
`trace_store/trace_directory.py` for traces, and `remove_ours` in `datagen/generate.py` for data sets.
"""

from pathlib import Path
from typing import Self

import msgspec

from iotwin.common.beneath import stays_within
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, struct_json, write_whole
from iotwin.common.foreign_files import read_foreign_struct
from iotwin.common.removal import remove_listed

LIST = ".iotwin.json"
_MOST_BYTES = 1 << 20


class _List(msgspec.Struct, tag="folder made by iotwin", tag_field="kind"):
    what: str
    made: list[str]


class MadeFolder:
    """A folder that this process fills, and the list of what it made there."""

    def __init__(self, directory: Path, what: str) -> None:
        self.directory, self._list = directory, _List(what, [])

    @classmethod
    def claim(cls, directory: Path, what: str, force: bool) -> Self:
        """Make `directory`, or take it if it is empty or an earlier `what` that `force` allows to replace.

        Raises UsageError when it is a file, holds anything else, or is ours without `force`.
        """
        if directory.exists() and not directory.is_dir():
            raise UsageError(f"{directory} is a file; choose another directory")
        if directory.exists() and any(directory.iterdir()):
            made = _listed(directory, what)
            if made is None:
                raise UsageError(
                    f"{directory} holds other files; choose another directory (if an earlier iotwin made it, remove it)"
                )
            if not force:
                raise UsageError(f"{directory} holds an earlier {what}; choose another directory or add --force to replace it")
            remove_listed(directory, made)
        make_folder(directory)
        folder = cls(directory, what)
        folder._write()
        return folder

    @classmethod
    def of(cls, directory: Path, what: str) -> Self:
        """Return the folder as an earlier process left it; nothing is listed if it is no `what` of ours."""
        folder = cls(directory, what)
        folder._list.made += _listed(directory, what) or []
        return folder

    def entry(self, name: str) -> Path:
        """Return the path of the entry `name`, after listing it as made here: what is listed first is removed even after a kill.

        Raises UsageError when something that is not listed has this name already.
        """
        path = self.directory / name
        if name not in self._list.made:
            if path.is_symlink() or path.exists():
                raise UsageError(f"{path} is in the way, and iotwin did not make it; move it elsewhere")
            self._list.made.append(name)
            self._write()
        return path

    def clear(self, name: str) -> None:
        """Remove the entry `name` if it is listed."""
        if name in self._list.made:
            remove_listed(self.directory, [name])

    def _write(self) -> None:
        write_whole(self.directory / LIST, struct_json(self._list))


def _listed(directory: Path, what: str) -> list[str] | None:
    """Return the names that the directory's list of a `what` holds; None if it has no such list."""
    try:
        found = read_foreign_struct(directory / LIST, _List, _MOST_BYTES, follow=False)
    except (OSError, IotwinError):
        return None
    return found.made if found.what == what and all(stays_within(name) for name in found.made) else None
