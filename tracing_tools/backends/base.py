"""What every way to capture offers, so that the recorder need not know which one it has."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tracing_tools.trace.recording import Recording
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

    def drain(self, recording: Recording) -> bool:
        """Move what is pending into the recording; return whether there was so much that more is due at once."""

    def ledger(self) -> Ledger:
        """Return the counts so far."""

    def stop(self, recording: Recording | None) -> None:
        """Detach from everything and move what is left into the recording, if there still is one."""


_MEANT = {
    "mmap": "reads through memory maps", "async": "requests through io_uring and libaio", "block": "block requests",
}  # fmt: skip


def not_recorded(backend: str, scope: Scope, groups: tuple[str, ...]) -> list[str]:
    """Return a note on those of the chosen groups of operations that `backend` knows nothing of, `groups`; none: no note."""
    chosen = [f"{group} ({_MEANT[group]})" if group in _MEANT else group for group in groups if group in scope.detail]
    return [f"{backend} does not record {', '.join(chosen)} of --detail; libbpf does"] if chosen else []
