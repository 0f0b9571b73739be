"""The base class of targets: the processes that a trace records."""

from pathlib import Path
from typing import ClassVar

from iotwin.trace_store.manifest import Target
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.targets.cgroup import Cgroup


class TraceTarget:
    """The processes to trace. Call order: start, attach, names, release, has_ended until it returns True, close."""

    is_ours: ClassVar[bool] = False  # iotwin starts it, and passes interrupts on; otherwise an interrupt only ends the trace

    def __init__(self, scope: Scope, root_pid: int | None = None, cgroup: Cgroup | None = None) -> None:
        """`cgroup` contains the processes of the target; None if the target is a process tree."""
        self.scope, self.root_pid, self._cgroup = scope, root_pid, cgroup
        self.notes: list[str] = []
        self.exit_status: int | None = None  # -signal if a signal ended it; None while it runs, or if it has none
        self.containers: dict[str, str] = {}  # names of containers by their id

    def describe(self) -> Target:
        """Return the description of the target for the manifest."""
        raise NotImplementedError

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Prepare the target up to, but not including, its first instruction. Its output is copied to the directory `logs`."""

    def attach(self, backend: Backend) -> None:
        """Have the backend follow the target's processes."""

    def names(self) -> bytes:
        """Return name records of the processes that run already and of the files that they have open."""
        return b""

    def show_output(self) -> bool:
        """Start to copy the output to iotwin's own streams; return False if the recorder must copy it from the logs."""
        return False

    def has_shown_output(self, wait_s: float) -> bool:
        """Whether all output since `show_output` was copied; waits up to `wait_s`. Output after the first call is not copied."""
        return True

    def release(self) -> None:
        """Let the target run. Raises IotwinError if that is impossible."""

    def abandon(self) -> None:
        """Undo `start` without letting it run."""

    def has_ended(self) -> bool:
        """Whether the target's main process has ended; sets `exit_status`."""
        return not self.remaining()

    def remaining(self) -> list[int]:
        """Return the pids that are still traced."""
        return self._cgroup.pids() if self._cgroup else []

    def signal(self, number: int) -> None:
        """Send a signal to all processes of a target that iotwin started."""

    def cpu_ns(self) -> int | None:
        """Return the CPU time so far in nanoseconds; None if nothing counts it."""
        return self._cgroup.cpu_ns() if self._cgroup else None

    def cgroup_path(self) -> Path | None:
        """Return the cgroup's directory in the cgroup2 hierarchy; None if the target is a process tree."""
        return self._cgroup.path if self._cgroup else None

    def closing_notes(self) -> list[str]:
        """Wait until the output is complete; return notes on how the target ended."""
        return []

    def close(self) -> None:
        """Remove what was made for the target, such as cgroups."""
