"""What the recorder, the ways to capture and the targets know of one another: scope, ledger, backend, target."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tracing_tools.trace.manifest import Target
from tracing_tools.trace.raw.recording import Recording
from tracing_tools.trace.syscalls import DEFAULT_DETAIL


@dataclass
class Ledger:
    """The kernel's own counts: every event seen was either recorded or lost to one of the sources."""

    seen: int | None = None  # None: the backend cannot count independently of what it records
    lost: dict[str, int] = field(default_factory=dict)


@dataclass
class Scope:
    """Which tasks to trace: those in a cgroup (given by id and depth in its hierarchy) or, without one, a process tree.

    `detail` names the groups of operations to record (syscalls.DETAIL_GROUPS).
    """

    cgroup_id: int = 0
    cgroup_level: int = 0
    entered_by_exec: bool = False  # of the cgroup, only what executed a program there (and its forks): no container runtime
    follows_job: bool = False  # what was in the cgroup, and its forks, stay traced when they leave it
    starts_command: bool = True  # the target is a command that the backend may wrap; False: it runs already, or elsewhere
    detail: tuple[str, ...] = DEFAULT_DETAIL


class Backend(Protocol):
    """A way to capture the tasks of a scope, made ready by its constructor. Calls: wrap, start, follow, drain..., stop."""

    name: str
    probes: list[str]

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line to start instead of `command`; `raw` is where it may write records of its own."""

    def start(self) -> None:
        """Begin to capture; IotwinError when that is not possible."""

    def follow(self, pid: int) -> None:
        """Capture the process `pid`, which waits for its first instruction, and all its descendants."""

    def strays(self) -> dict[int, bool]:
        """Return the processes that were captured outside the job's cgroup, as they left it, and whether each still runs.

        Without a cgroup: what ends only after the last process that is captured.
        """

    def drain(self, recording: Recording) -> bool:
        """Move what is pending into the recording; return whether there was so much that more is due at once."""

    def ledger(self) -> Ledger:
        """Return the counts so far."""

    def stop(self, recording: Recording | None) -> None:
        """Detach from everything and move what is left into the recording, if there still is one."""


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

    def show_output(self) -> bool:
        """Have its output shown on our own streams as it comes; False when that is left to whoever reads its logs."""

    def has_shown_output(self, wait_s: float) -> bool:
        """Whether all that `show_output` began has been shown, waiting so long for it; it ends with that."""

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
