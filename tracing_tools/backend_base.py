"""The base class of backends, the scope that a target passes to a backend, and the ledger that a backend returns."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from iotwin.common.errors import IotwinError
from iotwin.trace_store.raw.recording import Recording
from iotwin.trace_store.syscalls import DEFAULT_DETAIL

_MEANING_OF_GROUP = {
    "mmap": "reads through memory maps",
    "async": "requests through io_uring and libaio",
    "block": "block requests",
}


@dataclass
class Ledger:
    """The kernel's own counts: every event seen was either recorded or lost to one of the sources."""

    seen: int | None = None  # None: the backend has no count apart from what it records
    lost: dict[str, int] = field(default_factory=dict)


@dataclass
class Scope:
    """Which tasks to trace: those in a cgroup, given by its id and its depth in the hierarchy; without one, a process tree.

    `detail` names the groups of operations to record (syscalls.DETAIL_GROUPS).
    """

    cgroup_id: int = 0
    cgroup_level: int = 0
    entered_by_exec: bool = False  # only processes that executed a program in the cgroup, and their forks: no container runtime
    follows_job: bool = False  # processes that were in the cgroup, and their forks, stay traced when they leave it
    starts_command: bool = True  # the target is a command that the backend may wrap; False: the target runs without its help
    detail: tuple[str, ...] = DEFAULT_DETAIL


class Backend:
    """One way to capture the tasks of a scope; its constructor prepares it. Call order: wrap, start, follow, drain..., stop."""

    name: str
    probes: list[str]
    needs_command: ClassVar[bool] = False  # it captures only a command that it starts itself
    unrecorded_groups: ClassVar[tuple[str, ...]] = ()  # groups of operations that it cannot record

    def __init__(self, scope: Scope) -> None:
        """Raise IotwinError if the backend cannot capture `scope`; note the chosen groups that it does not record."""
        if self.needs_command and not scope.starts_command:
            raise IotwinError(
                f"{self.name} traces only a command that it starts itself; containers and running processes need libbpf or bcc"
            )
        missing = [group for group in self.unrecorded_groups if group in scope.detail]
        meant = [f"{group} ({_MEANING_OF_GROUP[group]})" if group in _MEANING_OF_GROUP else group for group in missing]
        self._notes = [f"{self.name} does not record {', '.join(meant)} of --detail; libbpf does"] if meant else []

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line to start instead of `command`; the backend may write its own files to `raw`."""
        return command

    def start(self) -> None:
        """Begin to capture. Raises IotwinError if that is impossible."""

    def follow(self, pid: int) -> None:
        """Capture the process `pid`, which waits for its first instruction, and all its descendants."""

    def strays(self) -> dict[int, bool]:
        """Return the pids captured outside the job's cgroup, because they left it, and whether each still runs.

        Without a cgroup: the processes that end only after the last captured process.
        """
        return {}

    def drain(self, recording: Recording) -> bool:
        """Move pending records into the recording; return True if so many were pending that the next drain is due at once."""
        return False

    def ledger(self) -> Ledger:
        """Return the counts so far."""
        return Ledger()

    def stop(self, recording: Recording | None) -> None:
        """Detach all probes; unless `recording` is None, move the last records and the backend's notes into it."""
        if recording is not None:
            recording.manifest.notes += self._notes
