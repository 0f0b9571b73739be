"""Temporary folders of one run, locked as long as it lives; what a killed one left is removed by a later one."""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from common.errors import IotwinError
from common.files import temporary_directory

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class HeldFolder:
    """A new folder at `path`, named from `prefix`, with these permissions; `close` removes it with what is in it."""

    def __init__(self, prefix: str, mode: int) -> None:
        """IotwinError when there is no place for one."""
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=temporary_directory()))
            self._held = os.open(self.path, _FOLDER)
            os.fchmod(self._held, mode)
            fcntl.flock(self._held, fcntl.LOCK_EX)
            if os.fstat(self._held).st_nlink:  # else one that started beside us removed it before it was locked
                return
            os.close(self._held)

    def close(self) -> None:
        """Remove it; again is no harm."""
        if self._held >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._held)
            self._held = -1


def remove_stale(prefix: str, mode: int, name: str, may_go: Callable[[Path, os.stat_result], bool]) -> list[str]:
    """Remove the folders that killed runs of this user left; return their names.

    Such a folder is its user's, has these permissions, nobody has it locked, and it holds nothing but `name`, if that: which
    `may_go` says of its path and status.
    """
    try:
        paths = Path(temporary_directory()).glob(f"{prefix}*")
    except IotwinError:  # there is no such place, and so nothing is left in one
        return []
    return [path.name for path in paths if _was_removed(path, mode, name, may_go)]


def _was_removed(path: Path, mode: int, name: str, may_go: Callable[[Path, os.stat_result], bool]) -> bool:
    try:
        folder = os.open(path, _FOLDER)
    except OSError:  # a link, a file, another user's
        return False
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != mode:
            return False
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
        if names == [name] and may_go(path / name, os.stat(name, dir_fd=folder, follow_symlinks=False)):
            os.unlink(name, dir_fd=folder)
        path.rmdir()
    except OSError:  # a living run's, one that holds more, or already gone
        return False
    finally:
        os.close(folder)
    return True
