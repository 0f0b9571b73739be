"""How a job and its twin respond to other storage: both run under the same changes, their epochs side by side."""

import shutil
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow.compute as pc

from common.errors import IotwinError, UsageError
from common.files import claim_directory, write_json
from common.foreign_files import read_foreign_json
from common.progress import note
from common.units import parse_size
from iotwin.loops.kept_cache import kept_cached
from iotwin.loops.page_cache import evict
from iotwin.loops.traced import run_traced
from iotwin.loops.twin import OUTPUT, SUMMARY, TWIN, generate_data
from iotwin.own_command import own_command
from tracing_tools.targets.limits import MEMORY, READS, LimitedCgroups, Limits, device_below, reason_against
from tracing_tools.trace.reader import Trace
from tracing_tools.trace.schema import READ_OPS

RESPONSE = "response.json"
DEFAULT_CHANGES = ("cold", "read=50MB", "requests=500", "cache=32MiB")
_JOB, _TWIN = "job", "twin"
_READ_AHEAD_BYTES = 1 << 22  # at a time, to bring a data set into the page cache
_EXAMPLES = "write for example cold, read=25MB, requests=200, cache=64MiB or read=25MB,cache=64MiB"


@dataclass(frozen=True)
class Change:
    """A change of storage: what was asked, by name; `cache_bytes` is the page cache left to a run, None for all there is."""

    name: str
    is_cold: bool = False
    read_bytes_per_s: int | None = None
    read_requests_per_s: int | None = None
    cache_bytes: int | None = None


UNCHANGED = Change("cached")


def parse_change(text: str) -> Change:
    """Return the change that `text` asks for, as `cold` or `read=25MB,cache=64MiB`; UsageError for anything else."""
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
    # A limit on reads that the page cache serves, or on a cache that others have filled, would change nothing.
    return Change(text, is_cold=True, **found)


def respond(
    directory: Path, output: Path, changes: Sequence[Change], runs: int, job: Sequence[str], force: bool
) -> dict[str, Any]:
    """Run the twin in `directory`, and the `job` if there is one, under each change, and return what RESPONSE in `output` says.

    Before any change both run as they are, from the page cache. Raises IotwinError where this machine cannot make a change.
    """
    sides = _sides(directory, job)
    _check_changes(changes, sides)
    if claim_directory(output, "response", lambda: _is_response(output), force):
        for old in output.glob("*.trace"):
            shutil.rmtree(old)
    times: dict[str, dict[str, list[_Times]]] = {change.name: {name: [] for name in sides} for change in (UNCHANGED, *changes)}
    for index in range(runs):
        for change in (UNCHANGED, *changes):
            for name, side in sides.items() if index % 2 == 0 else reversed(sides.items()):
                note(f"{change.name}: running the {name}")
                trace = output / f"{name}-{_file_name(change.name)}-{index + 1}.trace"
                times[change.name][name].append(side.run(change, trace))
    document = {
        "twin": str(directory),
        "job": list(job) or None,
        "runs": runs,
        "changes": [{"change": change, **_row(found)} for change, found in times.items()],
    }
    write_json(output / RESPONSE, document)
    return document


def _is_response(output: Path) -> bool:
    return all(path.name == RESPONSE or path.suffix == ".trace" for path in output.iterdir())


def _file_name(change: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in change)


def _sides(directory: Path, job: Sequence[str]) -> "dict[str, _Side]":
    """Return the job, if there is one, and the twin in `directory`."""
    if not (directory / SUMMARY).exists():
        raise UsageError(f"{directory} holds no twin; make one: iotwin twin TRACE -o {directory}")
    page_faults = "page_fault" in read_foreign_json(directory / SUMMARY)["source"]["counts"]
    twin = _Side(own_command("emulate", directory / TWIN), generate_data(directory), directory / OUTPUT, page_faults)
    return {_JOB: _Side(list(job), _data_of_job(directory), None, page_faults), _TWIN: twin} if job else {_TWIN: twin}


def _data_of_job(directory: Path) -> list[Path]:
    """Return the files that the job reads, which the trace that the twin was made from names."""
    path = Path(read_foreign_json(directory / "round-1" / "similarity.json")["a"])
    try:
        files = Trace(path).files()
    except IotwinError as error:
        raise IotwinError(f"the trace that the twin was made from names the job's data set: {error}") from None
    named = [Path(name) for name in files["path"][files["kind"] == "dataset"]]
    found = [name for name in named if name.is_file()]
    if not found:
        raise IotwinError(f"none of the files that the job read in {path} is here any more; run respond where the job can run")
    return found


class _Times:
    """What a run took: `epochs_s` where its epochs are known, and from the first read of the data set to the end of the last."""

    def __init__(self, trace: Trace) -> None:
        phases = trace.phases()
        phases = phases[(phases["phase"] == "epoch") & ((phases["rank"] == phases["rank"].min()) | phases["rank"].isna())]
        self.epochs_s: list[float] = ((phases["end_ns"] - phases["start_ns"]) / 1e9).tolist()
        self.span_s = _span_s(trace)


def _span_s(trace: Trace) -> float:
    files = trace.files()
    data = files.loc[files["kind"] == "dataset", "file_id"].to_numpy()
    of_data = pc.field("op").cast("string").isin(list(READ_OPS)) & pc.field("file_id").isin(data.tolist())
    reads = trace.events_frame(["start_ns", "duration_ns"], of_data)
    if reads.empty:
        raise IotwinError(f"the run reads no data set: see iotwin stats {trace.path} --by file")
    return float((reads["start_ns"] + reads["duration_ns"]).max() - reads["start_ns"].min()) / 1e9


class _Side:
    """The job or its twin: its command, the files of its data set, and where it writes if that is ours to clear."""

    def __init__(self, command: list[str], data: list[Path], output: Path | None, page_faults: bool) -> None:
        self._command, self._data, self._output, self._page_faults = command, data, output, page_faults
        self._own_memory_bytes = 0

    def devices(self) -> set[str]:
        """Return the disks that the data set is on; IotwinError when it is on none."""
        return {device_below(folder) for folder in {path.parent for path in self._data}}

    def run(self, change: Change, trace: Path) -> _Times:
        """Run it once under a change, under the tracer, and return what it took."""
        if self._output is not None:
            shutil.rmtree(self._output, ignore_errors=True)
        if change.is_cold:
            for path in self._data:
                evict(path)
        memory = None if change.cache_bytes is None else self._own_memory_bytes + change.cache_bytes
        limits = Limits(change.read_bytes_per_s, change.read_requests_per_s, memory)
        devices = self.devices() if limits.read_bytes_per_s or limits.read_requests_per_s else set()
        # Which pages stay in a cache that is short is for the kernel to say.
        kept = nullcontext() if change.cache_bytes else kept_cached(self._data)
        with kept, LimitedCgroups(limits, devices) as cgroups:
            if not change.is_cold:
                for path in self._data:
                    _fetch(path)
            run_traced(self._command, trace, trace.stem, page_faults=self._page_faults, limits=cgroups)
        if change is UNCHANGED:
            self._own_memory_bytes = max(self._own_memory_bytes, cgroups.most_memory_bytes)
        return _Times(Trace(trace))


def _check_changes(changes: Sequence[Change], sides: dict[str, _Side]) -> None:
    """Raise IotwinError before anything runs when a change cannot be made here."""
    capped = [change for change in changes if change.read_bytes_per_s or change.read_requests_per_s]
    for what, asking in ((READS, capped), (MEMORY, [change for change in changes if change.cache_bytes])):
        if asking and (reason := reason_against(what)):
            raise IotwinError(f"this machine cannot make the change '{asking[0].name}': {reason}")
    if capped:
        for side in sides.values():
            side.devices()


def _fetch(path: Path) -> None:
    """Have a file in the page cache."""
    with path.open("rb", buffering=0) as file:
        while file.read(_READ_AHEAD_BYTES):
            pass


def _row(found: dict[str, list[_Times]]) -> dict[str, Any]:
    """Return the medians of both sides and their ratios: of a whole epoch, and of the first one."""
    lengths = {len(times.epochs_s) for of_side in found.values() for times in of_side}
    by_epoch = len(lengths) == 1 and lengths != {0}
    row: dict[str, Any] = {"of": "epoch" if by_epoch else "reading"}
    for name, of_side in found.items():
        row[name] = {
            "seconds": median(sum(times.epochs_s) / len(times.epochs_s) if by_epoch else times.span_s for times in of_side),
            "first_epoch_s": median(times.epochs_s[0] for times in of_side) if by_epoch else None,
            "epochs_s": [times.epochs_s for times in of_side],
            "reading_s": [times.span_s for times in of_side],
        }
    for key, of in (("ratio", "seconds"), ("first_epoch_ratio", "first_epoch_s")):
        both = _JOB in row and row[_JOB][of]
        row[key] = row[_TWIN][of] / row[_JOB][of] if both else None
    return row
