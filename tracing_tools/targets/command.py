"""Starting the traced command: stopped before its first instruction, as the invoking user, with its output kept."""

import contextlib
import os
import resource
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

from common.errors import IotwinError, UsageError
from common.signals import REQUESTS
from tracing_tools.protocols import Backend, Scope
from tracing_tools.targets.cgroup import JobCgroup
from tracing_tools.targets.job_output import JobOutput
from tracing_tools.targets.limits import LimitedCgroups
from tracing_tools.targets.processes import is_asleep, open_files, process_tree
from tracing_tools.targets.user import User, invoking_user
from tracing_tools.trace.manifest import Target
from tracing_tools.trace.raw.file_table import readable

_AT_GATE = b"\0"  # what the child says when nothing but the exec is left to do


class CommandTarget:
    """A command that we start, and all its descendants: in a cgroup of its own as root, else followed as a process tree."""

    is_ours = True

    def __init__(self, command: list[str], limits: LimitedCgroups | None = None) -> None:
        self._command, self._user, self._limits = command, invoking_user(), limits
        parent = limits.parent if limits else None
        self._cgroup = JobCgroup.create(parent) if os.geteuid() == 0 else "it needs root"
        if parent and isinstance(self._cgroup, str):
            raise IotwinError(f"the job cannot be put under limits: {self._cgroup}")
        self.scope = Scope() if isinstance(self._cgroup, str) else replace(self._cgroup.scope, follows_job=True)
        self.notes: list[str] = []
        if isinstance(self._cgroup, str):
            self.notes.append(f"filtering by process tree instead of a cgroup: {self._cgroup}")
        self._file_size_limit = _lift_file_size_limit()
        self.exit_status: int | None = None
        self.root_pid: int | None = None
        self.containers: dict[str, str] = {}
        self._started: StartedCommand | None = None
        self._backend: Backend | None = None

    def describe(self) -> Target:
        """Return the command, where it runs and as whom."""
        path = self.cgroup_path()
        user_id = self._user.user_id if self._user else None
        # As the kernel has it: a directory that was removed, or whose name is no text, is no reason not to run the command.
        directory = readable(os.fsencode(Path("/proc/self/cwd").readlink()))
        command = [readable(os.fsencode(word)) for word in self._command]
        return Target(command, directory, self.root_pid, cgroup=str(path) if path else None, user_id=user_id)

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Start the command, stopped before its first instruction."""
        self._started = StartedCommand(backend.wrap(self._command, raw), logs, self._user, self._file_size_limit)
        self.root_pid = self._started.pid

    def attach(self, backend: Backend) -> None:
        """Put the process where it is seen."""
        self._backend = backend
        if self._started is not None and self.root_pid is not None:
            self._started.wait_at_gate()
            if not isinstance(self._cgroup, str):
                self._cgroup.add(self.root_pid)
            if self._limits is not None:
                self._limits.add(self.root_pid)
            backend.follow(self.root_pid)

    def names(self) -> bytes:
        """Name the files that the command finds open: its standard streams."""
        if self._started is None:
            return b""
        return open_files(self._started.pid, (0, 1, 2), dict(zip((1, 2), self._started.output.paths, strict=True)))

    def show_output(self) -> bool:
        """Have its output shown on our own streams as it comes."""
        if self._started:
            self._started.output.show()
        return True

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
        if self._started:
            self._started.output.mend()
        return self.exit_status is not None

    def remaining(self) -> list[int]:
        """Return the job's processes; without a cgroup only the command's own is known, and what follows the others."""
        if not isinstance(self._cgroup, str):
            return self._cgroup.pids() + [pid for pid, runs in self._strays().items() if runs]
        if self.root_pid is not None and self.exit_status is None:
            return [self.root_pid]
        return [pid for pid, runs in self._strays().items() if runs]

    def signal(self, number: int) -> None:
        """Send a signal to every process of the job, or to none that has it already: with our whole process group."""
        pids = process_tree(self.remaining()) if isinstance(self._cgroup, str) else self.remaining()
        if number != signal.SIGKILL and self._started and self._started.output.was_told(number):
            pids = [pid for pid in pids if pid == self.root_pid and os.getpgid(pid) != os.getpgrp()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def cpu_ns(self) -> int | None:
        """Return the CPU time of the job."""
        return None if isinstance(self._cgroup, str) else self._cgroup.cpu_ns()

    def cgroup_path(self) -> Path | None:
        """Return the job's cgroup."""
        return None if isinstance(self._cgroup, str) else self._cgroup.path

    def _strays(self) -> dict[int, bool]:
        return self._backend.strays() if self._backend is not None else {}

    def closing_notes(self) -> list[str]:
        """Say what left the cgroup, and what its logs lack, once they have the last of its output."""
        strays = self._strays()
        notes = []
        if strays and not isinstance(self._cgroup, str):
            notes.append(
                f"{len(strays)} of the job's processes left its cgroup (the first: {min(strays)}): their calls are recorded, but"
                " the job's CPU time and block requests are those of its cgroup"
            )
        if self._started is None:
            return notes
        output = self._started.output
        if not output.drain() or output.was_mended:
            notes.append("some of the job's output may be missing in logs: the process that kept it was held or killed")
        missing = zip(output.missing_bytes, ("stdout", "stderr"), strict=True)
        return notes + [f"logs/{name} lacks {size} bytes that the disk had no room for" for size, name in missing if size]

    def has_shown_output(self, wait_s: float) -> bool:
        """Whether our own streams have taken all of its output; waits so long for it."""
        return self._started is None or self._started.output.is_shown(wait_s)

    def close(self) -> None:
        """Let go of its output, and remove the cgroup."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._file_size_limit)
        if self._started:
            self._started.output.close()
        if not isinstance(self._cgroup, str):
            self._cgroup.remove()


def _lift_file_size_limit() -> tuple[int, int]:
    """Let us write files of any size, as far as we may, and return the limit that the command is to have."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    for lifted in (resource.RLIM_INFINITY, limit[1]):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_FSIZE, (lifted, lifted))
            break
    return limit


class StartedCommand:
    """A child process that waits for `release` before it executes `command`.

    Its standard output and error go where `output` has them go.
    """

    def __init__(self, command: list[str], logs: Path, user: User | None, file_size_limit: tuple[int, int] | None = None) -> None:
        program = shutil.which(command[0])
        if program is None:
            raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
        self.command, self._file_size_limit = command, file_size_limit
        self._told = b""
        self.output = JobOutput(logs, user.user_id if user else None)
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        # Held back meanwhile: Python drops a Ctrl-C that arrives in the hooks it runs around a fork.
        held = signal.pthread_sigmask(signal.SIG_BLOCK, REQUESTS)
        self.pid = os.fork()
        if self.pid == 0:
            self._become(program, gate_read, failure_write, self.output.ends, user, held)
        for descriptor in (gate_read, failure_write):
            os.close(descriptor)
        self.output.close_ends()
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
            if self._file_size_limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, self._file_size_limit)
            environment = dict(os.environ)
            if user is not None:
                os.initgroups(user.name, user.group_id)
                os.setgid(user.group_id)
                os.setuid(user.user_id)
                environment |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
            # Python ignores two signals for itself. What our caller had ignored, as nohup does, the command ignores as well.
            for number in (signal.SIGPIPE, signal.SIGXFSZ, *REQUESTS):
                if number not in REQUESTS or signal.getsignal(number) is not signal.SIG_IGN:
                    signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.write(failure, _AT_GATE)
            if os.read(gate, 1):
                os.execve(program, self.command, environment)  # noqa: S606 - the user's own command, as given
        except OSError as error:
            os.write(failure, (error.strerror or str(error)).encode())
        finally:
            os._exit(127)

    def wait_at_gate(self) -> None:
        """Wait until the child waits, too: what it does before is no part of the command."""
        self._told = os.read(self._failure, 4096)
        while self._told == _AT_GATE and not is_asleep(self.pid):
            time.sleep(0.0005)

    def release(self) -> None:
        """Let the command run; IotwinError when it cannot be executed."""
        with contextlib.suppress(BrokenPipeError):  # killed while it waited; its exit status will say so
            os.write(self._gate, b"\1")
        os.close(self._gate)
        self._gate = -1
        told = self._told + os.read(self._failure, 4096)  # ends at the exec, which closes the other end
        reason = told.removeprefix(_AT_GATE).decode(errors="replace")
        os.close(self._failure)
        if reason:
            os.waitpid(self.pid, 0)
            raise IotwinError(f"cannot run '{self.command[0]}': {reason}")

    def abandon(self) -> None:
        """End the child without running the command, unless it runs."""
        if self._gate < 0:
            return
        os.close(self._gate)
        os.close(self._failure)
        self._gate = -1
        os.waitpid(self.pid, 0)
        self.output.close()
