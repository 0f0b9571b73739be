"""Starting the traced command: stopped before its first instruction, as the invoking user, with its output kept."""

import contextlib
import os
import pwd
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path

from tracing_tools.backends.base import Backend, Scope
from tracing_tools.targets.cgroup import JobCgroup
from tracing_tools.targets.processes import open_files
from tracing_tools.trace.errors import IotwinError, UsageError
from tracing_tools.trace.manifest import Target


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


class CommandTarget:
    """A command that we start, and all its descendants: in a cgroup of its own as root, else followed as a process tree."""

    is_ours = True

    def __init__(self, command: list[str]) -> None:
        self._command, self._user = command, invoking_user()
        self._cgroup = JobCgroup.create() if os.geteuid() == 0 else "it needs root"
        self.scope = Scope() if isinstance(self._cgroup, str) else self._cgroup.scope
        self.notes: list[str] = []
        if isinstance(self._cgroup, str):
            self.notes.append(f"filtering by process tree instead of a cgroup: {self._cgroup}")
        self.exit_status: int | None = None
        self.root_pid: int | None = None
        self.containers: dict[str, str] = {}
        self._started: StartedCommand | None = None

    def describe(self) -> Target:
        """Return the command, where it runs and as whom."""
        path = self.cgroup_path()
        user_id = self._user.user_id if self._user else None
        return Target(self._command, str(Path.cwd()), self.root_pid, cgroup=str(path) if path else None, user_id=user_id)

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Start the command, stopped before its first instruction."""
        self._started = StartedCommand(backend.wrap(self._command, raw), logs, self._user)
        self.root_pid = self._started.pid

    def attach(self, backend: Backend) -> None:
        """Put the process where it is seen."""
        if self.root_pid is not None:
            if not isinstance(self._cgroup, str):
                self._cgroup.add(self.root_pid)
            backend.follow(self.root_pid)

    def names(self) -> bytes:
        """Name the files that the command finds open: its standard streams."""
        return open_files(self.root_pid, (0, 1, 2)) if self.root_pid is not None else b""

    def release(self) -> None:
        """Let the command run."""
        if self._started:
            self._started.release()

    def abandon(self) -> None:
        """End the process without running the command."""
        if self._started:
            self._started.abandon()

    def has_ended(self) -> bool:
        """Whether the command has ended; its descendants may remain."""
        if self.exit_status is None and self.root_pid is not None:
            pid, status = os.waitpid(self.root_pid, os.WNOHANG)
            if pid:
                self.exit_status = os.waitstatus_to_exitcode(status)
        return self.exit_status is not None

    def remaining(self) -> list[int]:
        """Return the job's processes; without a cgroup only the command's own is known."""
        if not isinstance(self._cgroup, str):
            return self._cgroup.pids()
        return [self.root_pid] if self.root_pid is not None and self.exit_status is None else []

    def signal(self, number: int) -> None:
        """Send a signal to every process of the job."""
        for pid in self.remaining():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the job."""
        return None if isinstance(self._cgroup, str) else self._cgroup.cpu_ns()

    def cgroup_path(self) -> Path | None:
        """Return the job's cgroup."""
        return None if isinstance(self._cgroup, str) else self._cgroup.path

    def closing_notes(self) -> list[str]:
        """Its exit status says it all."""
        return []

    def close(self) -> None:
        """Remove the cgroup."""
        if not isinstance(self._cgroup, str):
            self._cgroup.remove()


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
