"""Targets that already run: a process tree, a cgroup, the whole machine. A trace ends with its target or by an interrupt."""

import time
from dataclasses import replace
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.trace_store.manifest import Target
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.targets.cgroup import Cgroup
from iotwin.tracing_tools.targets.command import CommandTarget
from iotwin.tracing_tools.targets.running_processes import process_tree, running_processes
from iotwin.tracing_tools.targets.target import TraceTarget

_TREE_EVERY_S = 0.25


class RunningTarget(TraceTarget):
    """Base class of targets that already run when the trace begins, so that no backend can start them."""

    def __init__(self, scope: Scope, root_pid: int | None = None, cgroup: Cgroup | None = None) -> None:
        super().__init__(replace(scope, starts_command=False), root_pid, cgroup)

    def attach(self, backend: Backend) -> None:
        """Let the backend follow the processes, also those forked meanwhile. If a cgroup decides what is traced, do nothing."""
        if self.scope.cgroup_id and not self.scope.entered_by_exec:
            return
        followed: set[int] = set()
        while new := set(self.remaining()) - followed:
            for pid in new:
                backend.follow(pid)
            followed |= new

    def names(self) -> bytes:
        """Return name records of the target's processes and of their open files."""
        return running_processes(self.remaining())


class ProcessTarget(RunningTarget):
    """A process that already runs, and its descendants."""

    def __init__(self, pid: int) -> None:
        if not Path(f"/proc/{pid}").is_dir():
            raise IotwinError(f"there is no process {pid}; it may have ended: look for it with ps")
        super().__init__(Scope(), pid)
        self._pids = [pid]
        self._command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
        self._tree_due = 0.0

    def describe(self) -> Target:
        """Return the pid of the process and its command."""
        return Target(self._command, root_pid=self.root_pid)

    def attach(self, backend: Backend) -> None:
        """Let the backend follow the whole process tree. Raises IotwinError if the tree has ended."""
        super().attach(backend)
        if not self._pids:
            raise IotwinError(f"process {self.root_pid} ended before it could be traced")

    def remaining(self) -> list[int]:
        """Return the pids of the known processes that still run, and of their descendants."""
        self._pids = sorted(process_tree(self._pids))
        return self._pids

    def has_ended(self) -> bool:
        """Return True if the whole tree has ended. Checked only every 0.25 s, as reading all of /proc is slow."""
        now = time.monotonic()
        if now >= self._tree_due:
            self._tree_due = now + _TREE_EVERY_S
            self.remaining()
        return not self._pids


class CgroupTarget(RunningTarget):
    """A cgroup of the v2 hierarchy and the cgroups below it."""

    _cgroup: Cgroup

    def __init__(self, name: str) -> None:
        found = Cgroup.find(name)
        super().__init__(found.scope, cgroup=found)

    def describe(self) -> Target:
        """Return the cgroup's directory."""
        return Target(cgroup=str(self._cgroup.path))

    def has_ended(self) -> bool:
        """Return True if the cgroup was removed. While it exists, even empty, processes may enter it."""
        return not self._cgroup.path.is_dir()


class MachineTarget(CgroupTarget):
    """All processes of the machine, except the tracer itself."""

    def __init__(self) -> None:
        super().__init__("/")

    def describe(self) -> Target:
        """Return the root cgroup."""
        return Target(cgroup="/")

    def has_ended(self) -> bool:
        """Return False: a machine does not end."""
        return False

    def cpu_ns(self) -> int | None:
        """Return None: samples of the CPUs already measure the whole machine."""
        return None


class MachineDuringCommand(CommandTarget):
    """All processes of the machine while a command runs."""

    def __init__(self, command: list[str]) -> None:
        super().__init__(command)
        self._machine = MachineTarget()
        self.scope = self._machine.scope

    def names(self) -> bytes:
        """Return name records of all processes of the machine and of their open files."""
        return self._machine.names()

    def running_names(self) -> bytes:
        """Return name records of all processes of the machine that run now, and of their open files."""
        return self._machine.names()
