"""Run a job and its twin under the same changes of storage, and compare the times of their epochs."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from iotwin.command_lines import own_command
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import write_json
from iotwin.common.progress import note
from iotwin.common.result_folder import MadeFolder
from iotwin.common.units import parse_size
from iotwin.common.untrusted_files import read_foreign_json
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache_state import evict, fetch
from iotwin.loops.respond.limits_in_force import DataSetReading, not_in_force, reading_of
from iotwin.loops.traced_run import run_traced
from iotwin.loops.twin_from_trace import KIND, OUTPUT, TWIN, generate_data, read_summary
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.verdict.caveats import caveats_of, caveats_of_floor
from iotwin.tracing_tools.targets.storage_limits import MEMORY, READS, LimitedCgroups, Limits, device_below, reason_against

RESPONSE = "response.json"
DEFAULT_CHANGES = ("cold", "read=50MB", "requests=500", "cache=32MiB")
_JOB, _TWIN = "job", "twin"
_EXAMPLES = "write for example cold, read=25MB, requests=200, cache=64MiB or read=25MB,cache=64MiB"


@dataclass(frozen=True)
class StorageChange:
    """A change of storage. `name`: the text of --change. `cache_bytes`: page cache that a run may use; None: no limit."""

    name: str
    is_cold: bool = False
    read_bytes_per_s: int | None = None
    read_requests_per_s: int | None = None
    cache_bytes: int | None = None


UNCHANGED = StorageChange("cached")


def parse_change(text: str) -> StorageChange:
    """Return the change that `text` specifies, such as `cold` or `read=25MB,cache=64MiB`. Raises UsageError for other text."""
    found: dict[str, Any] = {}
    for part in text.split(","):
        key, _, value = part.strip().partition("=")
        if key == "cold" and not value:
            continue
        if key == "read" and value:
            found["read_bytes_per_s"] = parse_size(value.removesuffix("/s"))
        elif key == "cache" and value:
            found["cache_bytes"] = parse_size(value)
        elif key == "requests" and value.isdecimal() and int(value):
            found["read_requests_per_s"] = int(value)
        else:
            raise UsageError(f"--change '{text}': '{part}' is no change of storage; {_EXAMPLES}")
    # Every change starts cold: limits would have no effect on reads that the page cache serves.
    return StorageChange(text, is_cold=True, **found)


def respond(
    directory: Path, output: Path, changes: Sequence[StorageChange], runs: int, job: Sequence[str], force: bool
) -> dict[str, Any]:
    """Run the twin in `directory`, and the command `job` if given, under each change. Return the document of their times.

    First, both run unchanged with their data in the page cache. If a change was not in force, the document has no ratio for it.
    The document is also written to response.json in `output`. Raises IotwinError if this machine cannot make a change.
    """
    summary = read_summary(directory)
    sides = _sides(directory, summary, job)
    _check_changes(changes, sides)
    folder = MadeFolder.claim(output, "response", force)
    found: dict[str, dict[str, list[_ResponseRun]]] = {
        change.name: {name: [] for name in sides} for change in (UNCHANGED, *changes)
    }
    for index in range(runs):
        for change in (UNCHANGED, *changes):
            for name, side in sides.items() if index % 2 == 0 else reversed(sides.items()):
                note(f"{change.name}: running the {name}")
                trace = folder.entry(f"{name}-{_file_name(change.name)}-{index + 1}.trace")
                found[change.name][name].append(side.run(change, trace))
    document = {
        "twin": str(directory),
        "job": list(job) or None,
        "runs": runs,
        "caveats": caveats_of_floor(summary["noise_floor"], "the job"),
        "changes": [{"change": change, **_row(of_change)} for change, of_change in found.items()],
    }
    write_json(folder.entry(RESPONSE), document)
    return document


def _file_name(change: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in change)


def _sides(directory: Path, summary: dict[str, Any], job: Sequence[str]) -> "dict[str, _ResponseSide]":
    """Return the sides to run by name: the command `job`, unless it is empty, and the twin in `directory`."""
    page_faults = "page_fault" in summary["source"]["counts"]
    command, data = own_command("emulate", directory / TWIN), generate_data(directory)
    twin = _ResponseSide("its twin", command, data, MadeFolder.of(directory, KIND), page_faults)
    return (
        {_JOB: _ResponseSide("the job", list(job), _data_of_job(directory), None, page_faults), _TWIN: twin}
        if job
        else {_TWIN: twin}
    )


def _data_of_job(directory: Path) -> list[Path]:
    """Return the data-set files that the job reads, by the trace that the twin was made from."""
    source = directory / "round-1" / "similarity.json"
    compared = read_foreign_json(source) if source.exists() else None
    if not isinstance(compared, dict) or not isinstance(compared.get("a"), str):
        raise IotwinError(
            f"{source} does not name the trace that the twin was made from, and so the job's data; make the twin here"
        )
    path = Path(compared["a"])
    try:
        files = Trace(path).files()
    except IotwinError as error:
        raise IotwinError(f"the trace that the twin was made from names the job's data set: {error}") from None
    named = [Path(name) for name in files["path"][files["kind"] == "dataset"]]
    found = [name for name in named if name.is_file()]
    if not found:
        raise IotwinError(f"none of the files that the job read in {path} is here any more; run respond where the job can run")
    return found


class _ResponseRun:
    """The times and caveats of one traced run, whose `name` the caveats use. `epochs_s` is empty if the epochs are unknown."""

    def __init__(self, trace: Trace, name: str) -> None:
        phases = trace.phases()
        phases = phases[(phases["phase"] == "epoch") & ((phases["rank"] == phases["rank"].min()) | phases["rank"].isna())]
        self.epochs_s: list[float] = ((phases["end_ns"] - phases["start_ns"]) / 1e9).tolist()
        self.reading: DataSetReading = reading_of(trace)
        self.lasted_s = ((trace.manifest.end_ns or 0) - (trace.manifest.start_ns or 0)) / 1e9
        self.caveats = caveats_of(trace, name)
        self.not_in_force: list[str] = []


class _ResponseSide:
    """The job or the twin: its command, and the files of its data set. `twin` is the twin's folder, None for the job."""

    def __init__(self, name: str, command: list[str], data: list[Path], twin: MadeFolder | None, page_faults: bool) -> None:
        self._name = name
        self._command, self._data, self._twin, self._page_faults = command, data, twin, page_faults
        self._own_memory_bytes = 0

    def devices(self) -> set[str]:
        """Return the disks that hold the data set. Raises IotwinError if a file is on none."""
        return {device_below(folder) for folder in {path.parent for path in self._data}}

    def run(self, change: StorageChange, trace: Path) -> _ResponseRun:
        """Run the command once under the tracer while `change` is in force, and return the times and caveats of the run.

        `trace`: directory for the trace.
        """
        if self._twin is not None:
            self._twin.clear(OUTPUT)
        if change.is_cold:
            for path in self._data:
                evict(path)
        memory = None if change.cache_bytes is None else self._own_memory_bytes + change.cache_bytes
        limits = Limits(change.read_bytes_per_s, change.read_requests_per_s, memory)
        devices, unknown = self._counted(change)
        # If the change limits the cache, the kernel must decide which pages remain.
        kept = nullcontext() if change.cache_bytes else kept_cached(self._data)
        with kept, LimitedCgroups(limits, devices) as cgroups:
            if not change.is_cold:
                for path in self._data:
                    fetch(path)
            run_traced(self._command, trace, trace.stem, page_faults=self._page_faults, limits=cgroups)
            disks = cgroups.device_reads()
        if change is UNCHANGED:
            self._own_memory_bytes = max(self._own_memory_bytes, cgroups.most_memory_bytes)
        run = _ResponseRun(Trace(trace), self._name)
        if change.is_cold:
            run.not_in_force += not_in_force(limits, run.reading, run.lasted_s, disks, cgroups.most_memory_bytes)
            if disks is None:
                run.caveats.append(f"whether the reads of {self._name} were cold is unknown: {unknown}")
        return run

    def _counted(self, change: StorageChange) -> tuple[set[str], str | None]:
        """Return the disks whose reads are counted during a run, and the reason if they cannot be counted."""
        if not change.is_cold:
            return set(), None
        try:
            return self.devices(), reason_against(READS)
        except IotwinError as error:  # the disk cannot be found; a change that caps its reads has been refused before
            return set(), str(error)


def _check_changes(changes: Sequence[StorageChange], sides: dict[str, _ResponseSide]) -> None:
    """Raise IotwinError if this machine cannot make one of the changes."""
    capped = [change for change in changes if change.read_bytes_per_s or change.read_requests_per_s]
    for what, asking in ((READS, capped), (MEMORY, [change for change in changes if change.cache_bytes])):
        if asking and (reason := reason_against(what)):
            raise IotwinError(f"this machine cannot make the change '{asking[0].name}': {reason}")
    if capped:
        for side in sides.values():
            side.devices()


def _row(found: dict[str, list[_ResponseRun]]) -> dict[str, Any]:
    """Return the median times of the job and of the twin under a change, and their ratios.

    `found`: the runs by side. A ratio is None if the change was not in force.
    """
    lengths = {len(run.epochs_s) for of_side in found.values() for run in of_side}
    by_epoch = len(lengths) == 1 and lengths != {0}
    row: dict[str, Any] = {"of": "epoch" if by_epoch else "reading"}
    for name, of_side in found.items():
        row[name] = {
            "seconds": median(
                sum(times.epochs_s) / len(times.epochs_s) if by_epoch else times.reading.span_s for times in of_side
            ),
            "first_epoch_s": median(run.epochs_s[0] for run in of_side) if by_epoch else None,
            "epochs_s": [run.epochs_s for run in of_side],
            "reading_s": [run.reading.span_s for run in of_side],
        }
    runs = [run for of_side in found.values() for run in of_side]
    row["not_in_force"] = [f"{name}: {text}" for name, of_side in found.items() for run in of_side for text in run.not_in_force]
    row["caveats"] = list(dict.fromkeys(caveat for run in runs for caveat in run.caveats))
    for key, of in (("ratio", "seconds"), ("first_epoch_ratio", "first_epoch_s")):
        both = _JOB in row and row[_JOB][of] and not row["not_in_force"]
        row[key] = row[_TWIN][of] / row[_JOB][of] if both else None
    return row
