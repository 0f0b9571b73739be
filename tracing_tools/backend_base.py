"""The base class of backends (ways to capture calls), the Scope of tasks that they trace, and their Ledger of counts."""

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
    """The backend's own counts: each event seen was either recorded or lost."""

    seen: int | None = None  # None: the backend counts only what it records
    lost: dict[str, int] = field(default_factory=dict)  # by cause


@dataclass
class Scope:
    """Which tasks to trace: those in the cgroup `cgroup_id` and below; if that is 0, a tree of processes."""

    cgroup_id: int = 0
    cgroup_level: int = 0  # depth of the cgroup in its hierarchy
    entered_by_exec: bool = False  # leave out the container runtime: trace processes only after an exec in the cgroup
    follows_job: bool = False  # processes of the cgroup, and their forks, stay traced when they leave it
    starts_command: bool = True  # the target is a command that the backend may wrap; False: it runs already
    detail: tuple[str, ...] = DEFAULT_DETAIL  # groups of operations to record (syscalls.DETAIL_GROUPS)


class Backend:
    """One way to capture the calls of the tasks in a Scope. Call order: constructor, wrap, start, follow, drain..., stop."""

    name: str
    probes: list[str]
    needs_command: ClassVar[bool] = False  # True if it captures only a command that it starts
    unrecorded_groups: ClassVar[tuple[str, ...]] = ()  # groups of --detail that it cannot record

    def __init__(self, scope: Scope) -> None:
        """Add a note on chosen groups that the backend cannot record. Raises IotwinError if it cannot capture `scope`."""
        if self.needs_command and not scope.starts_command:
            raise IotwinError(
                f"{self.name} traces only a command that it starts itself; containers and running processes need libbpf or bcc"
            )
        missing = [group for group in self.unrecorded_groups if group in scope.detail]
        meant = [f"{group} ({_MEANING_OF_GROUP[group]})" if group in _MEANING_OF_GROUP else group for group in missing]
        self._notes = [f"{self.name} does not record {', '.join(meant)} of --detail; libbpf does"] if meant else []

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` under this backend, which may write files to the directory `raw`."""
        return command

    def start(self) -> None:
        """Begin to capture. Raises IotwinError if that is impossible."""

    def follow(self, pid: int) -> None:
        """Capture `pid`, which has not executed its first instruction yet, and all its descendants."""

    def strays(self) -> dict[int, bool]:
        """Return the captured processes that left the job's cgroup: pid to whether it still runs.

        If there is no cgroup, return the processes to wait for after the last process of the job has ended.
        """
        return {}

    def drain(self, recording: Recording) -> bool:
        """Move the pending records to the recording; return True if so many were pending that the next drain is due at once."""
        return False

    def ledger(self) -> Ledger:
        """Return the counts so far."""
        return Ledger()

    def stop(self, recording: Recording | None) -> None:
        """Detach all probes; move the last records and the backend's notes to `recording`, unless that is None."""
        if recording is not None:
            recording.manifest.notes += self._notes
