"""Starting the traced command: stopped before its first instruction, as the invoking user, with its output kept."""

import contextlib
import os
import pwd
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from tracing_tools.trace.errors import IotwinError, UsageError


@dataclass(frozen=True)
class User:
    """Who the command runs as."""

    user_id: int
    group_id: int
    name: str
    home: str


def invoking_user() -> User | None:
    """Return who called sudo, or None when nobody did: the command then runs as the caller."""
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID", "").isdecimal():
        return None
    user_id = int(os.environ["SUDO_UID"])
    try:
        entry = pwd.getpwuid(user_id)
    except KeyError:
        raise UsageError(f"SUDO_UID is {user_id}, which is no user of this machine") from None
    return User(user_id, entry.pw_gid, entry.pw_name, entry.pw_dir)


class StartedCommand:
    """A child process that waits for `release` before it executes `command`.

    Its standard output and error go to files, not to a pipe: the job then survives the recorder, and nothing is lost with it.
    """

    def __init__(self, command: list[str], logs: Path, user: User | None) -> None:
        program = shutil.which(command[0])
        if program is None:
            raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
        self.command = command
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        outputs = [os.open(logs / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for name in ("stdout", "stderr")]
        # Held back meanwhile: Python drops a Ctrl-C that arrives in the hooks it runs around a fork.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
        self.pid = os.fork()
        if self.pid == 0:
            self._become(program, gate_read, failure_write, outputs, user, held)
        for descriptor in (gate_read, failure_write, *outputs):
            os.close(descriptor)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, held)
        except KeyboardInterrupt:
            self.abandon()
            raise

    def _become(
        self, program: str, gate: int, failure: int, outputs: list[int], user: User | None, mask: set[int | signal.Signals]
    ) -> None:
        """In the child: everything before the gate, so that after it nothing but the exec is left to be traced."""
        try:
            os.close(self._gate)
            os.close(self._failure)
            for target, descriptor in zip((1, 2), outputs, strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)
            environment = dict(os.environ)
            if user is not None:
                os.initgroups(user.name, user.group_id)
                os.setgid(user.group_id)
                os.setuid(user.user_id)
                environment |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
            # Python ignores SIGPIPE and handles SIGINT its own way; the command gets the defaults.
            for number in (signal.SIGPIPE, signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            if os.read(gate, 1):
                os.execve(program, self.command, environment)  # noqa: S606 - the user's own command, as given
        except OSError as error:
            os.write(failure, (error.strerror or str(error)).encode())
        finally:
            os._exit(127)

    def release(self) -> None:
        """Let the command run; IotwinError when it cannot be executed."""
        with contextlib.suppress(BrokenPipeError):  # killed while it waited; its exit status will say so
            os.write(self._gate, b"\1")
        os.close(self._gate)
        reason = os.read(self._failure, 4096).decode(errors="replace")  # ends at the exec, which closes the other end
        os.close(self._failure)
        if reason:
            os.waitpid(self.pid, 0)
            raise IotwinError(f"cannot run '{self.command[0]}': {reason}")

    def abandon(self) -> None:
        """End the child without running the command."""
        os.close(self._gate)
        os.close(self._failure)
        os.waitpid(self.pid, 0)
