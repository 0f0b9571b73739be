"""Result folders of commands. A command claims a new or empty folder, and later replaces only the entries that it made there.

The file `.iotwin.json` in the folder names the kind of result and lists every entry that a command made. `--force` removes only
those entries. A trace has no such list, since it may be a copy or an import: `trace_store/trace_directory.py` recognises it by
its content. A data set has another list, the manifest: see `remove_ours` in `datagen/generate.py`.
"""

from pathlib import Path
from typing import Self

import msgspec

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder, struct_json, write_whole
from iotwin.common.paths_below import stays_within
from iotwin.common.removal import remove_listed
from iotwin.common.untrusted_files import read_foreign_struct

LIST = ".iotwin.json"
_MOST_BYTES = 1 << 20


class _List(msgspec.Struct, tag="folder made by iotwin", tag_field="kind"):
    what: str
    made: list[str]


class MadeFolder:
    """A folder that this process fills with a result of the kind `what`, and the list of the entries made there."""

    def __init__(self, directory: Path, what: str) -> None:
        self.directory, self._list = directory, _List(what, [])

    @classmethod
    def claim(cls, directory: Path, what: str, force: bool) -> Self:
        """Return the folder `directory`, created if missing. With `force`, remove an earlier result of the kind `what` from it.

        Raises UsageError if `directory` is a file or holds other files. Without `force`, also if it holds an earlier result.
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
        """Return `directory` with the list that an earlier process wrote there. If its kind is not `what`, the list is empty."""
        folder = cls(directory, what)
        folder._list.made += _listed(directory, what) or []
        return folder

    def entry(self, name: str) -> Path:
        """Add `name` to the list on disk and return its path. The caller then creates it, so a kill leaves no unlisted entry.

        Raises UsageError if `name` exists in the folder but not in the list.
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
    try:
        found = read_foreign_struct(directory / LIST, _List, _MOST_BYTES, follow=False)
    except (OSError, IotwinError):
        return None
    return found.made if found.what == what and all(stays_within(name) for name in found.made) else None
