"""Temporary folders that a process locks while it runs. Later processes remove the unlocked folders of killed processes."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.files import temporary_directory, temporary_folder
from iotwin.common.removal import remove_empty, remove_entry, remove_own

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A new folder at `path`, whose name begins with `prefix`, with the permissions `mode`. `close` removes it."""

    def __init__(self, prefix: str, mode: int) -> None:
        """Create and lock the folder. Raises IotwinError if no folder can be created."""
        while True:
            self.path = temporary_folder(prefix)
            self._held = os.open(self.path, _FOLDER)
            os.fchmod(self._held, mode)
            fcntl.flock(self._held, fcntl.LOCK_EX)
            if os.fstat(self._held).st_nlink:  # False if another process removed the folder before it was locked
                return
            os.close(self._held)

    def close(self) -> None:
        """Remove the folder and its content. May be called repeatedly."""
        if self._held >= 0:
            remove_own(self.path)
            os.close(self._held)
            self._held = -1


def remove_stale(prefix: str, mode: int, name: str, may_go: Callable[[Path, os.stat_result], bool]) -> list[str]:
    """Remove the folders that killed processes of this user left. Their names begin with `prefix`. Return the removed names.

    A folder is removed if it belongs to this user, has the permissions `mode`, is not locked, and is empty or contains only the
    file `name`. `may_go`, called with this file's path and status, must then return True.
    """
    try:
        paths = Path(temporary_directory()).glob(f"{prefix}*")
    except IotwinError:  # there is no temporary directory
        return []
    return [path.name for path in paths if _was_removed(path, mode, name, may_go)]


def _was_removed(path: Path, mode: int, name: str, may_go: Callable[[Path, os.stat_result], bool]) -> bool:
    try:
        folder = os.open(path, _FOLDER)
    except OSError:  # a link, a file, or another user's folder
        return False
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != mode:
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        if names == [name] and may_go(path / name, os.stat(name, dir_fd=folder, follow_symlinks=False)):
            remove_entry(name, folder)
        return remove_empty(path)
    except OSError:  # locked by a running process, not empty, or gone already
        return False
    finally:
        os.close(folder)
