"""Finish a trace without the recorder's privileges.

A recording contains strings that the job chose: log lines, file names, arguments. The recorder runs as root, so it only moves
records. A separate process parses them, after it has become the user who called sudo.
"""

import contextlib
import importlib
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from iotwin.common.errors import IotwinError, reason_of
from iotwin.common.untrusted_files import decode_foreign
from iotwin.trace_store.manifest import Manifest, read_manifest, write_manifest
from iotwin.trace_store.raw.finish import finish_trace, recover_trace
from iotwin.trace_store.raw.record_files import is_being_recorded
from iotwin.tracing_tools.backends.choose_backend import convert
from iotwin.tracing_tools.recorder.unprivileged_process import answer_of, leave_root
from iotwin.tracing_tools.targets.user import User

_IMPORTED_LATE = ("numpy.ma", "pyarrow.compute")  # imported as root, since the user may be unable to read them
_DONE, _FAILED, _OUT_OF_MEMORY = b"+", b"-", b"m"
_NO_MEMORY = "the machine refused memory"


def finish_as(user: User, directory: int, finish: Callable[[], Manifest]) -> Manifest:
    """Run `finish` in a process of `user` and return its result. The process keeps open only `directory`, the trace's.

    Raises OSError, MemoryError or IotwinError if the process fails.
    """
    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    return _understood(answer_of(lambda answers: _work(user, {directory, answers}, finish)))


def finish_recording(
    descriptor: int, directory: Path, manifest: Manifest, user: User | None, failure: Exception | None
) -> tuple[Manifest, Exception | None]:
    """Convert the recording to tables, unless `failure` ended it. Return (manifest, `failure` or a later failure or None)."""
    held = held_path(descriptor)
    try:
        write_manifest(held, manifest)  # a recovery reads from the manifest how the job ended
        if user is not None:
            give(descriptor, user)
        if failure is not None:
            return manifest, failure
        if user is None:
            return finish_trace(held, manifest, convert), None
        return finish_as(user, descriptor, lambda: finish_trace(held, manifest, convert)), None
    except Exception as error:  # whatever fails, the job's exit status must be reported
        return manifest, failure or _cannot_finish(directory, error)


def _cannot_finish(directory: Path, error: Exception) -> IotwinError:
    reason = reason_of(error) if isinstance(error, OSError) else reason_of_failure(error)
    failure = IotwinError(f"{directory} cannot be finished: {reason}")
    failure.__cause__ = error
    return failure


def reason_of_failure(failure: Exception) -> str:
    """Return why a recording or its finishing failed, for a message."""
    if isinstance(failure, MemoryError):
        return _NO_MEMORY
    if isinstance(failure, OSError):
        return f"the trace cannot be written: {reason_of(failure)}"
    return str(failure) if isinstance(failure, IotwinError) else f"{type(failure).__name__}: {failure}"


def give(directory: int, user: User) -> None:
    """Make `user` the owner of the files in the trace `directory`, and then of the directory.

    The owner can plant links in the directory, so root must not follow any name in it afterwards.
    """
    for _, folders, files, descriptor in os.fwalk(".", topdown=False, dir_fd=directory, follow_symlinks=False):
        for name in (*files, *folders):
            with contextlib.suppress(FileNotFoundError):  # the job may remove files in raw/preload
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:  # a file with several hard links may be another user's
                    os.chown(name, user.user_id, user.group_id, dir_fd=descriptor, follow_symlinks=False)
    os.fchmod(directory, 0o777 & ~_umask())  # preload and strace had made it passable for the job's user
    os.fchown(directory, user.user_id, user.group_id)


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def recover_as(user: User, directory: Path) -> Manifest:
    """Recover the trace at `directory` in a process of `user`, who then owns it."""
    descriptor = hold(directory)
    try:
        path = held_path(descriptor)
        if read_manifest(path).status == "recording" and not is_being_recorded(path):
            give(descriptor, user)
        return finish_as(user, descriptor, lambda: recover_trace(path, convert))
    finally:
        os.close(descriptor)


def _work(user: User, kept: set[int], finish: Callable[[], Manifest]) -> bytes:
    """Run in the forked child: close all descriptors but `kept`, become `user`, and return the manifest or the error."""
    try:
        leave_root(user, kept, signal.SIG_DFL)
        return _DONE + msgspec.json.encode(finish())
    except MemoryError:
        return _OUT_OF_MEMORY
    except OSError as error:
        return _FAILED + (error.strerror or str(error)).encode()
    except BaseException as error:
        return _FAILED + (str(error) or type(error).__name__).encode(errors="replace")


def _understood(answer: bytes) -> Manifest:
    if answer.startswith(_DONE):
        return decode_foreign(answer[1:], Manifest, "the answer of the process that finishes the trace")
    if answer.startswith(_OUT_OF_MEMORY):
        raise MemoryError
    raise IotwinError(answer[1:].decode(errors="replace") or "the process that finishes it was ended")


def hold(directory: Path) -> int:
    """Return a descriptor of `directory`. Raises IotwinError if it is no directory."""
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise IotwinError(f"{directory}: {error.strerror}; give the directory of a trace") from None


def held_path(descriptor: int) -> Path:
    """Return a path to the directory with the descriptor `descriptor`. It remains valid if the directory is renamed."""
    return Path(f"/proc/self/fd/{descriptor}")
