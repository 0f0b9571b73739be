"""The traced command: started as the user who called sudo, held before its first instruction, with its output copied to logs."""

import contextlib
import os
import resource
import shutil
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.signals import REQUESTS, interrupts_held
from iotwin.trace_store.manifest import Target
from iotwin.trace_store.raw.file_table import readable
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.targets.cgroup import JobCgroup
from iotwin.tracing_tools.targets.job_output import JobOutput
from iotwin.tracing_tools.targets.running_processes import is_asleep, open_files, process_tree, running_processes
from iotwin.tracing_tools.targets.storage_limits import LimitedCgroups
from iotwin.tracing_tools.targets.target import TraceTarget
from iotwin.tracing_tools.targets.user import User, invoking_user

_RECORDER_LIMITS = {resource.RLIMIT_FSIZE: resource.RLIM_INFINITY, resource.RLIMIT_NOFILE: 1024}  # limits that the recorder needs
_AT_GATE = b"\0"  # the child sends this byte when it is ready to execute the command


class CommandTarget(TraceTarget):
    """A command that iotwin starts, with all its descendants: in a separate cgroup if iotwin is root, else a process tree."""

    is_ours = True

    def __init__(self, command: list[str], limits: LimitedCgroups | None = None, logs_prefix: str = "") -> None:
        """`limits` apply to the command. The logs of its output are called `logs_prefix`stdout and `logs_prefix`stderr."""
        parent = limits.parent if limits else None
        made = self._new_cgroup(parent)
        self._own: JobCgroup | None = None if isinstance(made, str) else made
        if parent and not self._own:
            raise IotwinError(f"the job cannot be put under limits: {made}")
        super().__init__(replace(self._own.scope, follows_job=True) if self._own else Scope(), cgroup=self._own)
        if not self._own:
            self.notes.append(f"filtering by process tree instead of a cgroup: {made}")
        self._command, self._user, self._limits, self._logs_prefix = command, invoking_user(), limits, logs_prefix
        self._command_limits = _lift_limits()
        self._started: StartedCommand | None = None
        self._backend: Backend | None = None

    def _new_cgroup(self, parent: Path | None) -> JobCgroup | str:
        """Return a new cgroup for the command, below `parent` if given, or the reason as text why there is none."""
        return JobCgroup.create(parent) if os.geteuid() == 0 else "it needs root"

    def describe(self) -> Target:
        """Return the command, its working directory and its user."""
        path = self.cgroup_path()
        user_id = self._user.user_id if self._user else None
        # Unlike os.getcwd, this works even if the directory was removed or its name is not UTF-8.
        directory = readable(os.fsencode(Path("/proc/self/cwd").readlink()))
        command = [readable(os.fsencode(word)) for word in self._command]
        return Target(command, directory, self.root_pid, cgroup=str(path) if path else None, user_id=user_id)

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Start the process that executes the command after `release`."""
        self._started = StartedCommand(
            backend.wrap(self.executed(), raw), logs, self._user, self._command_limits, self._logs_prefix
        )
        self.root_pid = self._started.pid

    def executed(self) -> list[str]:
        """Return the words to execute. In a subclass, they may differ from those that `describe` returns."""
        return self._command

    def attach(self, backend: Backend) -> None:
        """Move the command's process into its cgroups, and let the backend follow it."""
        self._backend = backend
        if self._started is not None and self.root_pid is not None:
            self._started.wait_at_gate()
            self.admit(self.root_pid)
            if self._limits is not None:
                self._limits.add(self.root_pid)

    def admit(self, pid: int) -> bool:
        """Move the process `pid` into the job's cgroup, and let the backend follow it."""
        if self._backend is None:
            return False
        if self._own:
            self._own.add(pid)
        self._backend.follow(pid)
        return True

    def names(self) -> bytes:
        """Return name records of the files that are open when the command begins, its standard streams."""
        if self._started is None:
            return b""
        return open_files(self._started.pid, (0, 1, 2), dict(zip((1, 2), self._started.output.paths, strict=True)))

    def show_output(self) -> bool:
        """Let the keeper (output_keeper.py) copy the output to iotwin's own streams."""
        if self._started:
            self._started.output.show()
        return True

    def release(self) -> None:
        """Let the command run."""
        if self._started:
            self._started.release()

    def abandon(self) -> None:
        """End the waiting process without running the command."""
        if self._started:
            self._started.abandon()

    def has_ended(self) -> bool:
        """Return True if the command has ended. Its descendants may still run."""
        if self.exit_status is None and self.root_pid is not None:
            pid, status = os.waitpid(self.root_pid, os.WNOHANG)
            if pid:
                self.exit_status = os.waitstatus_to_exitcode(status)
        if self._started:
            self._started.output.mend()
        return self.exit_status is not None

    def remaining(self) -> list[int]:
        """Return the pids of the job's processes that still run.

        With a cgroup: its processes, and the traced processes that left it.
        Without a cgroup: only the command's pid until the command ends; after that, the processes for which the backend waits.
        """
        if not self._own and self.root_pid is not None and self.exit_status is None:
            return [self.root_pid]
        return super().remaining() + [pid for pid, runs in self._strays().items() if runs]

    def running_names(self) -> bytes:
        """Return name records of the job's processes that run now, and of their open files; the standard streams last."""
        return running_processes(self._processes()) + self.names()

    def _processes(self) -> Collection[int]:
        return self.remaining() if self._own else process_tree(self.remaining())

    def signal(self, number: int) -> None:
        """Send the signal `number` to the job's processes, except the processes that received it with iotwin's process group."""
        self._send(number, self._processes())

    def _send(self, number: int, pids: Iterable[int]) -> None:
        if number != signal.SIGKILL and self._started and self._started.output.was_signalled(number):
            pids = [pid for pid in pids if pid == self.root_pid and os.getpgid(pid) != os.getpgrp()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _strays(self) -> dict[int, bool]:
        return self._backend.strays() if self._backend is not None else {}

    def closing_notes(self) -> list[str]:
        """Wait for the last output. Return notes on processes that left the cgroup and on output that the logs lack."""
        strays = self._strays()
        notes = []
        if strays and self._own:
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
        """Wait up to `wait_s` until all output was copied to iotwin's own streams. Return True if it was."""
        return self._started is None or self._started.output.is_shown(wait_s)

    def close(self) -> None:
        """Close the pipes of the output, and remove the cgroup."""
        _set_limits(self._command_limits)
        if self._started:
            self._started.output.close()
        if self._own:
            self._own.remove()


def _lift_limits() -> dict[int, tuple[int, int]]:
    """Raise this process's limits on size and number of files as far as permitted. Return the old limits, for the command."""
    before = {kind: resource.getrlimit(kind) for kind in _RECORDER_LIMITS}
    for kind, (soft, hard) in before.items():
        wanted = _RECORDER_LIMITS[kind]
        for lifted in (wanted, hard):
            if _allows(soft, lifted):
                break
            with contextlib.suppress(OSError, ValueError):
                resource.setrlimit(kind, (lifted, hard if _allows(hard, lifted) else lifted))
                break
    return before


def _allows(limit: int, wanted: int) -> bool:
    return limit == resource.RLIM_INFINITY or (wanted != resource.RLIM_INFINITY and limit >= wanted)


def _set_limits(limits: dict[int, tuple[int, int]]) -> None:
    for kind, limit in limits.items():
        resource.setrlimit(kind, limit)


def _become_caller(user: User | None) -> dict[str, str]:
    """Become `user`, unless None, and set the signal handlers that the command must have. Return the command's environment."""
    environment = dict(os.environ)
    if user is not None:
        os.initgroups(user.name, user.group_id)
        os.setgid(user.group_id)
        os.setuid(user.user_id)
        environment |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    # Python ignores SIGPIPE and SIGXFSZ, but the command must not. Requests that the caller ignores remain ignored.
    for number in (signal.SIGPIPE, signal.SIGXFSZ, *REQUESTS):
        if number not in REQUESTS or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    return environment


def become_command(command: list[str]) -> NoReturn:
    """Replace this process by `command`, untraced, as the user who called sudo. Raises UsageError if there is no such command."""
    program = program_of(command)
    environment = _become_caller(invoking_user())
    os.execve(program, command, environment)  # noqa: S606 - the user's own command


def program_of(command: list[str]) -> str:
    """Return the path of the program that `command` runs. Raises UsageError if there is none."""
    program = shutil.which(command[0])
    if program is None:
        raise UsageError(f"there is no command '{command[0]}'; check its name or give its path")
    return program


class StartedCommand:
    """A child process that executes `command` only after `release`. `output` receives stdout and stderr of the command."""

    def __init__(
        self, command: list[str], logs: Path, user: User | None, limits: dict[int, tuple[int, int]] | None = None,
        logs_prefix: str = "",
    ) -> None:  # fmt: skip
        program = program_of(command)
        self.command, self._limits = command, limits or {}
        self._messages = b""
        self.output = JobOutput(logs, user.user_id if user else None, logs_prefix)
        gate_read, self._gate = os.pipe()
        self._failure, failure_write = os.pipe()
        self.pid = 0
        try:
            with interrupts_held() as mask:  # Python loses a Ctrl-C that arrives in its hooks around a fork
                self.pid = os.fork()
                if self.pid == 0:
                    self._become(program, gate_read, failure_write, self.output.ends, user, mask)
                for descriptor in (gate_read, failure_write):
                    os.close(descriptor)
                self.output.close_ends()
        except KeyboardInterrupt:
            self.abandon()
            raise

    def _become(
        self, program: str, gate: int, failure: int, outputs: list[int], user: User | None, mask: set[int | signal.Signals]
    ) -> None:
        """Run in the child: prepare everything, wait at the pipe `gate` for `release`, and execute the command."""
        try:
            os.close(self._gate)
            os.close(self._failure)
            for target, descriptor in zip((1, 2), outputs, strict=True):
                os.dup2(descriptor, target)
                os.close(descriptor)
            _set_limits(self._limits)
            environment = _become_caller(user)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            os.write(failure, _AT_GATE)
            if os.read(gate, 1):
                os.execve(program, self.command, environment)  # noqa: S606 - the user's own command
        except OSError as error:
            os.write(failure, (error.strerror or str(error)).encode())
        finally:
            os._exit(127)

    def wait_at_gate(self) -> None:
        """Wait until the child has finished its preparations, so that they are not traced."""
        self._messages = os.read(self._failure, 4096)
        while self._messages == _AT_GATE and not is_asleep(self.pid):
            time.sleep(0.0005)

    def release(self) -> None:
        """Let the command run. Raises IotwinError if it cannot be executed."""
        with contextlib.suppress(BrokenPipeError):  # the child was killed; its exit status will show this
            os.write(self._gate, b"\1")
        os.close(self._gate)
        self._gate = -1
        messages = self._messages + os.read(self._failure, 4096)  # execve closes the other end
        reason = messages.removeprefix(_AT_GATE).decode(errors="replace")
        os.close(self._failure)
        if reason:
            os.waitpid(self.pid, 0)
            raise IotwinError(f"cannot run '{self.command[0]}': {reason}")

    def abandon(self) -> None:
        """End the child without running the command. Does nothing if the command was released."""
        if self._gate < 0:
            return
        os.close(self._gate)
        os.close(self._failure)
        self._gate = -1
        if self.pid:
            os.waitpid(self.pid, 0)
        self.output.close()
