"""What every kind of target offers, so that the recording loop need not know which one it has."""

from pathlib import Path
from typing import Protocol

from tracing_tools.backends.base import Backend, Scope
from tracing_tools.trace.manifest import Target


class TraceTarget(Protocol):
    """What is traced. Calls: start, attach, names, release, then has_ended until it is true, close.

    `is_ours` says that we started it: an interrupt is then passed on to it, while of a target that runs anyway an interrupt only
    ends the trace.
    """

    scope: Scope
    notes: list[str]
    is_ours: bool
    exit_status: int | None  # -signal when killed by one; None while it runs and for targets that have none
    root_pid: int | None
    containers: dict[str, str]  # names of containers by their id

    def describe(self) -> Target:
        """Return what the manifest says about it."""

    def start(self, backend: Backend, logs: Path, raw: Path) -> None:
        """Make it ready, before its first instruction; its output goes to files in `logs`."""

    def attach(self, backend: Backend) -> None:
        """Tell the capturing backend which processes to follow."""

    def names(self) -> bytes:
        """Return name records of the processes that run already and the files that they have open."""

    def release(self) -> None:
        """Let it run; IotwinError when it cannot."""

    def abandon(self) -> None:
        """Undo `start` without letting it run."""

    def has_ended(self) -> bool:
        """Whether its main process has ended; sets `exit_status`."""

    def remaining(self) -> list[int]:
        """Return the processes that are still traced."""

    def signal(self, number: int) -> None:
        """Send a signal to all of it."""

    def cpu_ns(self) -> int | None:
        """Return the CPU time it has used so far, nanoseconds; None where nothing counts it."""

    def cgroup_path(self) -> Path | None:
        """Return its directory in the cgroup2 hierarchy; None when it is a process tree."""

    def closing_notes(self) -> list[str]:
        """Return what is to be said of how it ended; its output is complete then."""

    def close(self) -> None:
        """Remove what was made for it."""
