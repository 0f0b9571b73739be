"""The trace's manifest.json: what was traced, how, on which machine, and what was lost."""

from pathlib import Path

import msgspec

from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.schema import SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"


class ClockPair(msgspec.Struct):
    """One reading of both clocks: CLOCK_REALTIME read between two CLOCK_MONOTONIC readings."""

    monotonic_ns: int
    realtime_ns: int
    uncertainty_ns: int  # half the width of the two monotonic readings


class Host(msgspec.Struct):
    """The machine a trace was taken on."""

    hostname: str
    kernel: str
    cpus: int
    memory_bytes: int
    architecture: str
    file_system: str = ""  # of the directory the trace is written to


class Target(msgspec.Struct):
    """What was traced."""

    command: list[str] = []
    working_directory: str = ""
    root_pid: int | None = None
    cgroup: str | None = None
    container: str | None = None
    image: str | None = None
    user_id: int | None = None


class Cost(msgspec.Struct):
    """What tracing cost the job and the machine."""

    wall_ns: int = 0
    tracer_cpu_ns: int = 0
    job_cpu_ns: int | None = None
    events_per_s: float = 0.0
    probe_run_ns: int | None = None  # time inside the eBPF programs, when the kernel counts it


class MergedHost(msgspec.Struct):
    """Where a part of a merged trace comes from."""

    name: str  # as in the `host` columns: the host's own, told apart where it occurs twice
    source: str  # the trace that was merged
    host: Host
    shift_ns: int  # at its start: what was added to its times
    uncertainty_ns: int  # of the readings of both clocks; how well the hosts' wall clocks agree comes on top
    events: int
    lost: int


class Manifest(msgspec.Struct, omit_defaults=False):
    """Everything about a trace that is not in its tables."""

    status: str  # recording | complete | recovered
    backend: str
    host: Host
    target: Target
    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    probes: list[str] = []
    notes: list[str] = []  # why a better backend was not used, what is missing, and so on
    clock: list[ClockPair] = []
    start_ns: int = 0
    end_ns: int = 0
    events: int = 0
    counts: dict[str, int] = {}  # events by operation
    lost: dict[str, int] = {}  # events lost by source; empty or all zero when nothing was
    seen: int | None = None  # counted in the kernel: seen = events + lost
    exit_status: int | None = None  # the command's
    workload: str | None = None
    parameters: dict[str, str] = {}
    cost: Cost = msgspec.field(default_factory=Cost)
    hosts: list[MergedHost] = []  # of a merged trace; times are the first one's

    @property
    def lost_events(self) -> int:
        """Events known to be missing from the tables."""
        return sum(self.lost.values())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write the manifest so that a reader sees the old one or the new one, never half of either."""
    temporary = directory / (MANIFEST_NAME + ".partial")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    temporary.replace(directory / MANIFEST_NAME)


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of the trace in `directory`; IotwinError when there is none or it is not one of ours."""
    path = directory / MANIFEST_NAME
    if not directory.exists():
        raise IotwinError(f"{directory}: no such trace; check the path")
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise IotwinError(f"{directory} is not an iotwin trace: it has no {MANIFEST_NAME}") from None
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror}") from None
    if not content.strip(b"\0 \n"):
        raise IotwinError(f"{path} is empty: the recording died at once or the disk was full; record again")
    try:
        manifest = msgspec.json.decode(content, type=Manifest)
    except msgspec.DecodeError as error:
        raise IotwinError(f"{path} is not an iotwin manifest: {error}") from None
    if manifest.schema_version > SCHEMA_VERSION:
        raise IotwinError(
            f"{path} has schema version {manifest.schema_version}, this iotwin reads up to {SCHEMA_VERSION}; upgrade iotwin"
        )
    return manifest
