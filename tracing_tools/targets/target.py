"""The base class of targets, which are the processes that a trace records."""

from pathlib import Path
from typing import ClassVar

from iotwin.trace_store.manifest import Target
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.targets.cgroup import Cgroup
from iotwin.tracing_tools.targets.running_processes import running_processes


class TraceTarget:
    """The processes to trace. Methods are called in the order start, attach, names, release, has_ended until True, close."""

    is_ours: ClassVar[bool] = False  # True if iotwin starts the target, so that an interrupt ends the target, too

    def __init__(self, scope: Scope, root_pid: int | None = None, cgroup: Cgroup | None = None) -> None:
        """`cgroup`: the cgroup that contains the target's processes, None if the target is the process tree of `root_pid`."""
        self.scope, self.root_pid, self._cgroup = scope, root_pid, cgroup
        self.notes: list[str] = []
        self.exit_status: int | None = None  # -signal if a signal killed the target; None while it runs, or if it has no status
        self.containers: dict[str, str] = {}  # names of containers by their id

    def describe(self) -> Target:
        """Return the description of the target for the manifest."""
        raise NotImplementedError

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Prepare the target up to, but not including, its first instruction. `logs`: directory to which its output is copied."""

    def attach(self, backend: Backend) -> None:
        """Let the backend follow the target's processes."""

    def admit(self, pid: int) -> bool:
        """Let the backend also trace the process `pid`, which does not belong to the target. Return False if it cannot."""
        return False

    def names(self) -> bytes:
        """Return name records of the target's processes that already run, and of their open files."""
        return b""

    def take_joined(self) -> bytes:
        """Return name records, as `names` does, of the commands that joined the target since the last call."""
        return b""

    def running_names(self) -> bytes:
        """Return name records of the target's processes that run now, and of their open files."""
        return running_processes(self.remaining())

    def show_output(self) -> bool:
        """Start to copy the output to iotwin's own streams. Return False if the recorder must copy the output from the logs."""
        return False

    def has_shown_output(self, wait_s: float) -> bool:
        """Wait up to `wait_s` until all output since `show_output` was copied. Return True if it was.

        Output that is printed after the first call is not copied.
        """
        return True

    def release(self) -> None:
        """Let the target run. Raises IotwinError if it cannot run."""

    def abandon(self) -> None:
        """Undo `start` without letting the target run."""

    def failed_status(self) -> int | None:
        """Return the exit status of a command that failed, None if none has."""
        return (self.exit_status or None) if self.has_ended() else None

    def has_ended(self) -> bool:
        """Return True if the target's main process has ended, and set `exit_status`."""
        return not self.remaining()

    def remaining(self) -> list[int]:
        """Return the pids of the target's processes that still run."""
        return self._cgroup.pids() if self._cgroup else []

    def signal(self, number: int) -> None:
        """Send the signal `number` to all processes of the target, if iotwin started it."""

    def cpu_ns(self) -> int | None:
        """Return the target's CPU time so far in nanoseconds; None if nothing counts it."""
        return self._cgroup.cpu_ns() if self._cgroup else None

    def cgroup_path(self) -> Path | None:
        """Return the directory of the target's cgroup in the v2 hierarchy; None if the target is a process tree."""
        return self._cgroup.path if self._cgroup else None

    def closing_notes(self) -> list[str]:
        """Wait until the output is complete. Return notes on how the target ended."""
        return []

    def close(self) -> None:
        """Remove what was created for the target, such as cgroups."""
