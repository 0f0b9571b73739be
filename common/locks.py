"""Lock files: they ensure that only one job at a time writes a directory. Even the same process cannot lock a file twice."""

import fcntl
import os
import threading
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.paths_below import open_beneath

_Identity = tuple[int, int]  # device and inode
_held: dict[int, _Identity] = {}  # lock files of this process, keyed by descriptor
_admission = threading.Lock()


def hold_lock(path: Path) -> int:
    """Lock the file `path`, created if missing, and return its descriptor. `release_lock` or the end of the process unlocks it.

    Child processes inherit the descriptor, but not the lock. Raises IotwinError if any process holds the lock, if `path` is a
    link or not a file, or if it cannot be created or locked.
    """
    with _admission:
        # Check before opening: lockf(3) lets the same process lock twice, and closing a second descriptor would end the lock.
        if _identity_at(path) in _held.values():
            raise _refusal(path)
        try:
            descriptor = open_beneath(path.parent, path.name, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise IotwinError(f"{path} cannot be made or opened: {error.strerror}; choose another directory") from None
        try:
            # Not flock(2): loader processes would inherit that lock and hold it for seconds after this process is killed.
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            if isinstance(error, (BlockingIOError, PermissionError)):
                raise _refusal(path) from None
            raise IotwinError(f"{path} cannot be locked: {error.strerror}; choose a directory on another file system") from None
        _held[descriptor] = _identity(os.fstat(descriptor))
        return descriptor


def release_lock(descriptor: int) -> None:
    """Unlock the file whose `descriptor` `hold_lock` returned."""
    with _admission:
        _held.pop(descriptor, None)
        os.close(descriptor)


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _identity_at(path: Path) -> _Identity | None:
    try:
        return _identity(os.lstat(path))
    except OSError:
        return None


def _refusal(path: Path) -> IotwinError:
    return IotwinError(f"{path.parent} is being written by another job; wait for it or choose another directory")


def _forget_all() -> None:
    """Forget the held locks in a process that was just forked, since only the parent process holds them."""
    global _admission
    _held.clear()
    _admission = threading.Lock()  # a new one, since another thread may have held the old one during the fork


os.register_at_fork(after_in_child=_forget_all)
