"""Finishing a trace without the recorder's privileges.

What was gathered holds strings of the job's making: its log lines, the names of its files, its arguments. While a job runs, the
recorder only moves records. They are read by a process of its own, which becomes the user who called sudo before the first byte.
"""

import contextlib
import importlib
import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import msgspec

from common.errors import IotwinError
from tracing_tools.backends import convert
from tracing_tools.recorder.apart import fork_apart, leave_root
from tracing_tools.targets.user import User
from tracing_tools.trace.manifest import Manifest, read_manifest
from tracing_tools.trace.raw.finish import recover_trace
from tracing_tools.trace.raw.recording import is_being_recorded

_PIECE_BYTES = 1 << 16
_IMPORTED_LATE = ("numpy.ma", "pyarrow.compute")  # by what finishes; the user may not be able to read where iotwin is installed
_DONE, _FAILED, _NO_MEMORY = b"+", b"-", b"m"


def finish_as(user: User, directory: int, finish: Callable[[], Manifest]) -> Manifest:
    """Return what `finish` returns in a process that is `user` and holds nothing but `directory`, the trace's descriptor.

    OSError, MemoryError or IotwinError when that cannot be.
    """
    for module in _IMPORTED_LATE:
        importlib.import_module(module)
    answers, ours = os.pipe()
    child = fork_apart(lambda: _work(user, {directory, ours}, ours, finish))
    os.close(ours)
    try:
        answer = b"".join(iter(lambda: os.read(answers, _PIECE_BYTES), b""))
    except BaseException:
        os.kill(child, signal.SIGKILL)
        raise
    finally:
        os.close(answers)
        os.waitpid(child, 0)
    return _understood(answer)


def give(directory: int, user: User) -> None:
    """Make all of the trace the user's, itself last: whoever owns a directory can put links into it meanwhile.

    As root nothing may follow a name in it any more.
    """
    for _, folders, files, descriptor in os.fwalk(".", topdown=False, dir_fd=directory, follow_symlinks=False):
        for name in (*files, *folders):
            with contextlib.suppress(FileNotFoundError):  # the job's own, where it may write (raw/preload)
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode) or status.st_nlink == 1:  # else it may be a link to somebody else's file
                    os.chown(name, user.user_id, user.group_id, dir_fd=descriptor, follow_symlinks=False)
    os.fchmod(directory, 0o777 & ~_umask())  # the job may have had to pass through it
    os.fchown(directory, user.user_id, user.group_id)


def _umask() -> int:
    umask = os.umask(0o077)
    os.umask(umask)
    return umask


def recover_as(user: User, directory: Path) -> Manifest:
    """Recover the trace at `directory` in a process of the user, who then owns it."""
    descriptor = hold(directory)
    try:
        path = held_path(descriptor)
        if read_manifest(path).status == "recording" and not is_being_recorded(path):
            give(descriptor, user)
        return finish_as(user, descriptor, lambda: recover_trace(path, convert))
    finally:
        os.close(descriptor)


def _work(user: User, kept: set[int], answers: int, finish: Callable[[], Manifest]) -> None:
    """In the child: keep standard streams, the trace and the way to answer, become the user, and do it."""
    answer = _FAILED
    try:
        leave_root(user, kept, signal.SIG_DFL)
        answer = _DONE + msgspec.json.encode(finish())
    except MemoryError:
        answer = _NO_MEMORY
    except OSError as error:
        answer += (error.strerror or str(error)).encode()
    except BaseException as error:
        answer += (str(error) or type(error).__name__).encode(errors="replace")
    finally:
        with contextlib.suppress(OSError):
            while answer:
                answer = answer[os.write(answers, answer) :]


def _understood(answer: bytes) -> Manifest:
    if answer.startswith(_DONE):
        return msgspec.json.decode(answer[1:], type=Manifest)
    if answer.startswith(_NO_MEMORY):
        raise MemoryError
    raise IotwinError(answer[1:].decode(errors="replace") or "the process that finishes it was ended")


def hold(directory: Path) -> int:
    """Return a descriptor of `directory`; IotwinError when it is none."""
    try:
        return os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise IotwinError(f"{directory}: {error.strerror}; give the directory of a trace") from None


def held_path(descriptor: int) -> Path:
    """Return a path to the directory that a descriptor holds, whatever has become of its name."""
    return Path(f"/proc/self/fd/{descriptor}")
