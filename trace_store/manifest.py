"""The manifest.json of a trace: what was traced, how, on which machine, and what was lost."""

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from iotwin.common.errors import IotwinError
from iotwin.common.files import struct_json, write_whole
from iotwin.common.untrusted_files import decode_foreign, read_foreign
from iotwin.trace_store.schema import SCHEMA_VERSION

MANIFEST_NAME = "manifest.json"
SET_NAME = "set.json"  # the file of a set of hosts, which has no manifest
KIND = "iotwin trace"
_MOST_MANIFEST_BYTES = 1 << 26
_MOST_NAMED = 5  # traces that an error message names

# Values are bounded, so that the sum of two fits in 64 bits.
Nanoseconds = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]
Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Pid = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
Status = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
State = Literal["recording", "complete", "recovered"]
# The evidence that bounds the difference between the clocks of two hosts.
Evidence = Literal["one clock", "sockets", "collectives", "ntp", "none"]


class ClockPair(msgspec.Struct):
    """A reading of two clocks at about the same time: CLOCK_REALTIME, read between two readings of CLOCK_MONOTONIC."""

    monotonic_ns: Nanoseconds
    realtime_ns: Nanoseconds
    uncertainty_ns: Nanoseconds  # half the time between the two readings of CLOCK_MONOTONIC
    # The largest and the estimated error of CLOCK_REALTIME by adjtimex(2); None if it is not synchronised.
    max_error_ns: Nanoseconds | None = None
    estimated_error_ns: Nanoseconds | None = None


class Host(msgspec.Struct):
    """The machine on which the trace was recorded."""

    hostname: str
    kernel: str
    cpus: Count
    memory_bytes: Count
    architecture: str
    file_system: str = ""  # the file system that holds the trace
    boot_id: str = ""  # differs for each boot of each machine; empty if unknown


class TracedTask(msgspec.Struct):
    """A command that a launcher such as srun started on the machine as one of several."""

    rank: Count
    pid: Pid
    exit_status: Status | None = None  # None while it runs, or if its end is unknown


class Target(msgspec.Struct):
    """The traced command, process, cgroup or container."""

    command: list[str] = []
    working_directory: str = ""
    root_pid: Pid | None = None
    cgroup: str | None = None
    container: str | None = None
    image: str | None = None
    user_id: int | None = None
    launch: str | None = None  # the launcher's identification of the launch, None if no launcher started the command
    tasks: list[TracedTask] = []  # the commands that the launcher started on this machine; empty without a launcher


class Cost(msgspec.Struct):
    """The CPU time of tracer and job, and the rate of events."""

    wall_ns: Nanoseconds = 0
    tracer_cpu_ns: Nanoseconds = 0
    job_cpu_ns: Nanoseconds | None = None
    events_per_s: float = 0.0
    probe_run_ns: Nanoseconds | None = None  # time inside the eBPF programs; None if the kernel does not count it
    # How much longer a traced call takes: a read or write, and another call. None if that was not measured.
    transfer_ns: Nanoseconds | None = None
    call_ns: Nanoseconds | None = None


class Ring(msgspec.Struct):
    """Facts about a trace of ``iotwin trace --ring``, which has only the end of a long recording."""

    size_bytes: Count  # most bytes of the records while recording
    kept_from_ns: Nanoseconds = 0  # the trace has all calls that began at this time or later, and no others
    overwritten_events: Count = 0
    overwritten_bytes: Count = 0  # size of the records that were overwritten, of all kinds


class MergedHost(msgspec.Struct):
    """One of the traces that a set or a merged trace consists of."""

    name: str  # host name, with a number added if several traces have the same; value of the columns `host`
    source: str  # path of the trace
    host: Host
    shift_ns: Nanoseconds  # what was added to the times at the trace's start
    uncertainty_ns: Nanoseconds | None  # largest error of the moved times; None if nothing bounds it
    events: Count
    lost: Count
    how: Evidence = "none"
    status: Literal["complete", "recovered", "missing"] = "complete"
    ranks: list[Pid] = []
    note: str = ""  # why it is missing, or which evidence on its clock was dropped


class Manifest(msgspec.Struct, omit_defaults=False):
    """The facts about a trace that are not in its tables."""

    status: State
    backend: str
    host: Host
    target: Target
    kind: str = KIND  # distinguishes traces from data sets and checkpoints, which also have a manifest.json
    schema_version: int = SCHEMA_VERSION
    tool_version: str = ""
    probes: list[str] = []
    notes: list[str] = []  # for people: why a better backend was not used, what is missing, ...
    clock: list[ClockPair] = []
    start_ns: Nanoseconds = 0
    end_ns: Nanoseconds = 0
    events: Count = 0
    counts: dict[str, Count] = {}  # number of events by operation
    lost: dict[str, Count] = {}  # number of lost events by cause
    seen: Count | None = None  # calls that the kernel counted: seen = events + lost + ring.overwritten_events
    exit_status: Status | None = None
    workload: str | None = None
    parameters: dict[str, str] = {}
    cost: Cost = msgspec.field(default_factory=Cost)
    ring: Ring | None = None  # only if the recording kept its newest events alone
    hosts: list[MergedHost] = []  # only of a set or a merged trace; its times are on the first host's clock

    @property
    def lost_events(self) -> int:
        """The number of events known to be missing from the tables."""
        return sum(self.lost.values())


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest` as the manifest.json of the trace at `directory`, whole or not at all."""
    write_whole(directory / MANIFEST_NAME, struct_json(manifest), below=directory)


def read_manifest(directory: Path) -> Manifest:
    """Return the manifest of the trace at `directory`. Raises IotwinError if the directory is no trace."""
    path = directory / MANIFEST_NAME
    if not directory.exists():
        raise IotwinError(f"{directory}: no such trace; check the path")
    try:
        content = read_foreign(path, _MOST_MANIFEST_BYTES)
    except NotADirectoryError:
        raise IotwinError(f"{directory} is a file; a trace is a directory, with a {MANIFEST_NAME} in it") from None
    except FileNotFoundError:
        if (directory / SET_NAME).exists():
            raise IotwinError(f"{directory} is a set of hosts, not a trace; give the traces of its hosts") from None
        raise IotwinError(f"{directory} is not an iotwin trace: it has no {MANIFEST_NAME}{_traces_within(directory)}") from None
    if not content.strip(b"\0 \n"):
        raise IotwinError(f"{path} is empty: the machine went down or the disk was full; try: iotwin recover {directory}")
    return decode_manifest(content, path)


def traces_in(directory: Path) -> list[Path]:
    """Return the traces in `directory`, finished or not, in order of their names."""
    manifests = sorted(directory.glob(f"[!.]*/{MANIFEST_NAME}"))
    # Data sets have a manifest, too.
    return [path.parent for path in manifests if any((path.parent / name).exists() for name in ("events.parquet", "raw"))]


def _traces_within(directory: Path) -> str:
    """Return words on the traces that `directory` contains, for an error message; an empty string if it contains none."""
    names = [path.name for path in traces_in(directory)]
    if not names:
        return ""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    one = f"give one of them, as {directory / names[0]}, or make them a set: iotwin set make {directory}"
    return f", but it contains the traces {', '.join(names[:_MOST_NAMED])}{more}; {one}"


def decode_manifest(content: bytes, path: Path) -> Manifest:
    """Return the manifest in `content`, read from `path`. Raises IotwinError if it is no trace's, or of a later iotwin."""
    try:
        manifest = decode_foreign(content, Manifest, "it")
    except IotwinError as error:
        raise IotwinError(f"{path.parent} is not an iotwin trace, or damaged: its {path.name} is no trace's ({error})") from None
    if manifest.kind != KIND:
        raise IotwinError(f"{path.parent} is not an iotwin trace: its {path.name} is of the kind {manifest.kind!r:.60}")
    if manifest.schema_version > SCHEMA_VERSION:
        raise IotwinError(
            f"{path} has schema version {manifest.schema_version}, this iotwin reads up to {SCHEMA_VERSION}; upgrade iotwin"
        )
    return manifest
