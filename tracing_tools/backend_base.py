"""The base class of backends, which are ways to capture calls; the Scope of tasks to trace; the Ledger of counted events."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from iotwin.common.errors import IotwinError
from iotwin.trace_store.raw.record_files import Recording
from iotwin.trace_store.syscalls import DEFAULT_DETAIL

_MEANING_OF_GROUP = {
    "mmap": "reads through memory maps",
    "async": "requests through io_uring and libaio",
    "block": "block requests",
}


@dataclass
class Ledger:
    """Counts of a backend: the events that it saw, and how many of them it lost. The backend recorded the other seen events."""

    seen: int | None = None  # None if the backend counts only recorded events
    lost: dict[str, int] = field(default_factory=dict)  # number of lost events by cause


@dataclass
class Scope:
    """The tasks to trace: all tasks in and below the cgroup with the id `cgroup_id`; if the id is 0, a tree of processes."""

    cgroup_id: int = 0
    cgroup_level: int = 0  # depth of the cgroup in its hierarchy
    entered_by_exec: bool = False  # trace a process only after an exec in the cgroup, which leaves out the container runtime
    follows_job: bool = False  # still trace processes, and their forks, after they leave the cgroup
    several_commands: bool = False  # True if `wrap` and `follow` may be called for several commands
    starts_command: bool = True  # True if the target is a command that the backend may wrap, False if it already runs
    detail: tuple[str, ...] = DEFAULT_DETAIL  # groups of operations to record (syscalls.DETAIL_GROUPS)


class Backend:
    """A way to capture the calls of the tasks in a Scope. Methods are called in the order wrap, start, follow, drain..., stop."""

    name: str
    probes: list[str]
    needs_command: ClassVar[bool] = False  # True if the backend can capture only a command that it starts
    follows_several: ClassVar[bool] = True  # False if the backend can capture only one command and its descendants
    unrecorded_groups: ClassVar[tuple[str, ...]] = ()  # groups of --detail that the backend cannot record

    def __init__(self, scope: Scope) -> None:
        """Note which groups of operations in `scope` cannot be recorded. Raises IotwinError if the tasks cannot be captured."""
        if self.needs_command and not scope.starts_command:
            raise IotwinError(
                f"{self.name} traces only a command that it starts itself; containers and running processes need libbpf or bcc"
            )
        if scope.several_commands and not self.follows_several:
            raise IotwinError(f"{self.name} follows one command only, not several tasks of a node")
        missing = [group for group in self.unrecorded_groups if group in scope.detail]
        meant = [f"{group} ({_MEANING_OF_GROUP[group]})" if group in _MEANING_OF_GROUP else group for group in missing]
        self._notes = [f"{self.name} does not record {', '.join(meant)} of --detail; libbpf does"] if meant else []

    def wrap(self, command: list[str], raw: Path) -> list[str]:
        """Return the command line that runs `command` under this backend. `raw`: directory to which the backend may write."""
        return command

    def start(self) -> None:
        """Begin to capture. Raises IotwinError if that is impossible."""

    def follow(self, pid: int) -> None:
        """Capture the process `pid`, which has not executed its first instruction yet, and all its descendants."""

    def strays(self) -> dict[int, bool]:
        """Return the captured processes that left the job's cgroup (strays), as {pid: True if it still runs}.

        If there is no cgroup, return the processes to wait for after the job's last process has ended.
        """
        return {}

    def drain(self, recording: Recording) -> bool:
        """Move the pending records to `recording`. Return True if there were enough to make the next drain due at once."""
        return False

    def ledger(self) -> Ledger:
        """Return the counts of seen and lost events so far."""
        return Ledger()

    def work_unrecorded(self, recording: Recording, work: Callable[[], None]) -> None:
        """Move the last records to `recording`. Then call `work` while calls are still traced, but no longer recorded.

        Call this after the job has ended; only `stop` may follow. A backend that records all calls that it traces does nothing.
        """

    def stop(self, recording: Recording | None) -> None:
        """Detach all probes. Move the last records and the backend's notes to `recording`, unless `recording` is None."""
        if recording is not None:
            recording.manifest.notes += self._notes
