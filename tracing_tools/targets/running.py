"""Targets that run already: a process tree, a cgroup, the whole machine. Only an interrupt or their end ends the trace."""

import time
from dataclasses import replace
from pathlib import Path

from common.errors import IotwinError
from tracing_tools.protocols import Backend, Scope
from tracing_tools.targets.cgroup import Cgroup
from tracing_tools.targets.command import CommandTarget
from tracing_tools.targets.processes import process_tree, running_processes
from tracing_tools.trace.manifest import Target

_TREE_EVERY_S = 0.25


class RunningTarget:
    """What is the same for all that we did not start."""

    is_ours = False

    def __init__(self, scope: Scope, root_pid: int | None = None) -> None:
        self.scope = replace(scope, starts_command=False)
        self.notes: list[str] = []
        self.exit_status: int | None = None
        self.root_pid = root_pid
        self.containers: dict[str, str] = {}

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Nothing to start."""

    def attach(self, backend: Backend) -> None:
        """Follow the processes, where it is not the cgroup that tells them; again until no new ones were forked meanwhile."""
        if self.scope.cgroup_id and not self.scope.entered_by_exec:
            return
        followed: set[int] = set()
        while new := set(self.remaining()) - followed:
            for pid in new:
                backend.follow(pid)
            followed |= new

    def names(self) -> bytes:
        """Name the processes and the files that they have open."""
        return running_processes(self.remaining())

    def show_output(self) -> bool:
        """Its output, if any, is in its logs."""
        return False

    def has_shown_output(self, wait_s: float) -> bool:
        """There is none."""
        return True

    def release(self) -> None:
        """It runs."""

    def abandon(self) -> None:
        """Let it run on."""

    def remaining(self) -> list[int]:
        """Return the processes that are still traced."""
        raise NotImplementedError

    def has_ended(self) -> bool:
        """Whether no process of it is left."""
        return not self.remaining()

    def signal(self, number: int) -> None:
        """It is not ours to signal."""

    def cpu_ns(self) -> int | None:
        """Nothing counts its CPU time."""
        return None

    def cgroup_path(self) -> Path | None:
        """It is told by its processes."""
        return None

    def closing_notes(self) -> list[str]:
        """Its exit status says it all."""
        return []

    def close(self) -> None:
        """Nothing was made for it."""


class ProcessTarget(RunningTarget):
    """A process that runs already, and its descendants."""

    def __init__(self, pid: int) -> None:
        if not Path(f"/proc/{pid}").is_dir():
            raise IotwinError(f"there is no process {pid}; it may have ended: look for it with ps")
        super().__init__(Scope(), pid)
        self._pids = [pid]
        self._command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        self._tree_due = 0.0

    def describe(self) -> Target:
        """Return the process and its command."""
        return Target(self._command, root_pid=self.root_pid)

    def attach(self, backend: Backend) -> None:
        """Follow the whole tree; IotwinError when it ended before."""
        super().attach(backend)
        if not self._pids:
            raise IotwinError(f"process {self.root_pid} ended before it could be traced")

    def remaining(self) -> list[int]:
        """Return the tree's processes: those known that still run, and their descendants."""
        self._pids = sorted(process_tree(self._pids))
        return self._pids

    def has_ended(self) -> bool:
        """Whether the whole tree has ended, as of a moment ago: looking through /proc takes its time."""
        now = time.monotonic()
        if now >= self._tree_due:
            self._tree_due = now + _TREE_EVERY_S
            self.remaining()
        return not self._pids


class CgroupTarget(RunningTarget):
    """A cgroup of the v2 hierarchy and those below it."""

    def __init__(self, name: str) -> None:
        self._cgroup = Cgroup.find(name)
        super().__init__(self._cgroup.scope)

    def describe(self) -> Target:
        """Return the cgroup's directory."""
        return Target(cgroup=str(self._cgroup.path))

    def remaining(self) -> list[int]:
        """Return the processes in it."""
        return self._cgroup.pids()

    def has_ended(self) -> bool:
        """Whether the cgroup is gone; one without processes may get new ones."""
        return not self._cgroup.path.is_dir()

    def cpu_ns(self) -> int | None:
        """Return the CPU time of its tasks since it was made."""
        return self._cgroup.cpu_ns()

    def cgroup_path(self) -> Path | None:
        """Return its directory."""
        return self._cgroup.path


class MachineTarget(CgroupTarget):
    """Everything that runs, except the tracer itself."""

    def __init__(self) -> None:
        super().__init__("/")

    def describe(self) -> Target:
        """Say that it is everything."""
        return Target(cgroup="/")

    def has_ended(self) -> bool:
        """A machine does not end."""
        return False

    def cpu_ns(self) -> int | None:
        """Nothing tells its CPU time from the machine's."""
        return None


class MachineDuringCommand(CommandTarget):
    """Everything that runs, for as long as a command of ours does."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._machine = MachineTarget()
        self.scope = self._machine.scope

    def names(self) -> bytes:
        """Name all processes and the files that they have open."""
        return self._machine.names()
