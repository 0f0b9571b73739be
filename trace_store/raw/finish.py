"""Finish a recording: convert its binary records to Parquet tables in order of start, and remove raw/.

If the recorder was killed, the same conversion recovers the recording up to its last complete record.
"""

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.common.removal import remove_listed
from iotwin.common.units import counted
from iotwin.common.untrusted_files import MOST_JSON_BYTES, decode_foreign, open_foreign, read_foreign, read_foreign_lines
from iotwin.trace_store import schema
from iotwin.trace_store.clocks import one_by_one, realtime_to_monotonic, step_notes
from iotwin.trace_store.columns import column, labels, rows_table
from iotwin.trace_store.logs.job_log import read_log
from iotwin.trace_store.manifest import (
    MANIFEST_NAME,
    ClockPair,
    Count,
    Host,
    Manifest,
    Ring,
    State,
    Target,
    read_manifest,
    write_manifest,
)
from iotwin.trace_store.raw.block_table import write_blocks
from iotwin.trace_store.raw.file_table import FileTable
from iotwin.trace_store.raw.gpu_table import gpu_table
from iotwin.trace_store.raw.process_table import process_table
from iotwin.trace_store.raw.record_files import (
    BLOCKS_FILE,
    EVENTS_FILE,
    GPU_FILE,
    JOURNAL_FILE,
    NAMES_FILE,
    RAW,
    is_being_recorded,
)
from iotwin.trace_store.raw.records import EVENT, LAST_NS, LIFE_TYPES, RING_HEADER_BYTES, NameRecord, read_names
from iotwin.trace_store.raw.ring import RUNNING_FILE, folders_from, record_folders
from iotwin.trace_store.raw.sorted_records import sorted_chunks
from iotwin.trace_store.syscalls import CALLS, NUMBER_OF_OP, OPEN_KINDS
from iotwin.trace_store.trace_directory import leftovers
from iotwin.trace_store.virtual_times import move_to_virtual
from iotwin.trace_store.writer import write_events, write_table

NO_PHASES = "none"  # value of the parameter `phases` of a trace without the phases that its job logged
_CLOCK_SLACK_NS = 3_600_000_000_000  # an event that begins more than an hour after the last clock reading is damaged
_MOST_PID = 1 << 22  # the kernel's greatest pid_max
_MOST_REQUESTED = np.uint64((1 << 62) - 1)  # bytes; table_checks.py refuses tables with more
_O_CREAT, _O_TRUNC = 0o100, 0o1000
_OPEN_NUMBERS = np.array([number for number, kind in CALLS.values() if kind in OPEN_KINDS])
_OP_NAMES = list(NUMBER_OF_OP)
_SEEN_AND_LOST = ("ring_full", "entry_missed", "perf_buffer")  # causes of losses that a backend counts in `seen`
_CODE_OF_NUMBER = np.zeros(1024, np.int16)
for _code, _name in enumerate(_OP_NAMES):
    _CODE_OF_NUMBER[NUMBER_OF_OP[_name]] = _code


class _Ledger(msgspec.Struct):
    seen: Count | None
    lost: dict[str, Count]


class _Container(msgspec.Struct):
    cgroup: int
    name: str


class _RingState(Ring, kw_only=True):
    first: Count  # number of the oldest segment that was not overwritten


_ENTRIES: dict[str, type[msgspec.Struct]] = {
    "clock": ClockPair,
    "ledger": _Ledger,
    "container": _Container,
    "ring": _RingState,
}
_REFUSED = (msgspec.ValidationError, TypeError, ValueError, OverflowError, AttributeError, pa.ArrowException)
Convert = Callable[[Path, Manifest], None]  # converts a backend's own files in raw/ to records


def recover_trace(directory: Path, convert: Convert | None = None) -> Manifest:
    """Finish the interrupted recording at `directory` up to its last complete record, and return its manifest.

    Raises IotwinError if there is nothing to recover, or if a recorder is still writing.
    """
    manifest = _manifest_of_recording(directory)
    if manifest.status != "recording":
        raise IotwinError(f"{directory} is already {manifest.status}; there is nothing to recover")
    if is_being_recorded(directory):
        raise IotwinError(f"{directory} is being recorded right now; end that iotwin trace first")
    if not any((folder / EVENTS_FILE).exists() for folder in record_folders(directory / RAW)):
        raise IotwinError(f"{directory} has no raw records left; nothing can be recovered")
    manifest.notes.append("recovered: the recorder was cut off; events of its last moments may be missing")
    return finish_trace(directory, manifest, convert, status="recovered")


def _manifest_of_recording(directory: Path) -> Manifest:
    """Return the manifest. If a crash of the machine destroyed it, return the copy from the beginning of the journal."""
    path = directory / MANIFEST_NAME
    try:
        return read_manifest(directory)
    except IotwinError:
        is_lost = path.is_file() and not read_foreign(path, MOST_JSON_BYTES).strip(b"\0 \n") if path.exists() else True
        if not is_lost or not _existing(record_folders(directory / RAW), EVENTS_FILE):
            raise
    for entry in _read_journal(record_folders(directory / RAW)):
        if entry["kind"] == "manifest":
            with contextlib.suppress(msgspec.ValidationError):
                return msgspec.convert(entry["manifest"], Manifest)
    return Manifest(status="recording", backend="unknown", host=Host("", "", 0, 0, ""), target=Target())


def finish_trace(directory: Path, manifest: Manifest, convert: Convert | None = None, status: State = "complete") -> Manifest:
    """Convert the records in `directory`/raw to tables, write the manifest with counts and `status`, and remove raw/.

    `convert` is called first, with the path of raw/ and the manifest. Returns the manifest.
    """
    # Arrow's own pool does not return freed memory, which would be a large part of a tracer's memory.
    pa.set_memory_pool(pa.system_memory_pool())
    raw = directory / RAW
    folders = record_folders(raw)
    journal = _read_journal(folders)
    _apply_journal(manifest, journal)
    if convert is not None:
        convert(raw, manifest)

    files = FileTable(log_paths={os.fsencode(path.resolve()) for path in _logs(directory)})
    first = max((entry["first"] for entry in journal if entry["kind"] == "ring"), default=0)
    lives = _read_names(folders_from(folders, first - 1), files)
    folders = folders_from(folders, first)
    since_ns = manifest.ring.kept_from_ns if manifest.ring else 0
    manifest.start_ns = max(manifest.start_ns, since_ns)
    events = _event_tables(_existing(folders, EVENTS_FILE), files, manifest)
    manifest.events = write_events(directory / "events.parquet", events)
    if blocks := _existing(folders, BLOCKS_FILE):
        write_blocks(blocks, directory / "block.parquet", files, since_ns)
    write_table(directory, "files.parquet", schema.FILES, files.table())
    dataset_bytes = files.dataset_bytes_by_pid()
    containers = {entry["cgroup"]: entry["name"] for entry in journal if entry["kind"] == "container"}
    processes = process_table(lives, dataset_bytes, manifest.target.root_pid, containers, since_ns)
    write_table(directory, "processes.parquet", schema.PROCESSES, processes)
    if calls := _existing(folders, GPU_FILE):
        write_table(directory, "gpu.parquet", schema.GPU, gpu_table(calls, since_ns))
    jumps = _write_log_tables(directory, manifest, since_ns)
    _write_samples(directory, [entry for entry in journal if entry.get("time_ns", since_ns) >= since_ns])

    _close_ledger(manifest)
    manifest.notes += step_notes(manifest.clock)
    if jumps:
        move_to_virtual(directory, manifest, np.array(jumps, np.int64))
    if manifest.ring is not None:
        manifest.ring.kept_from_ns = manifest.start_ns
        if overwritten := manifest.ring.overwritten_events:
            manifest.notes.append(f"the ring overwrote the first {counted(overwritten, 'event')}; the trace begins after them")
    wall_s = max(manifest.end_ns - manifest.start_ns, 1) / 1e9
    manifest.cost.events_per_s = round(manifest.events / wall_s, 1)
    manifest.status = status
    write_manifest(directory, manifest)
    remove_listed(directory, [RAW, *leftovers(directory)])
    return manifest


def _existing(folders: list[Path], name: str) -> list[Path]:
    return [folder / name for folder in folders if (folder / name).is_file()]


def _read_names(folders: list[Path], files: FileTable) -> list[NameRecord]:
    """Read the name records in `folders`. Add records of files to `files`; return records of forks, execs and exits.

    Each segment of a ring begins with records of its processes and open files. Only those of the oldest segment are used.
    """
    lives: list[NameRecord] = []
    for path in [*_existing(folders, RUNNING_FILE)[:1], *_existing(folders, NAMES_FILE)]:
        if not path.stat().st_size:
            continue
        with open_foreign(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for record in read_names(content):
                if record.type in LIFE_TYPES:
                    lives.append(record)
                else:
                    files.add_name(record)
    return lives


def _read_journal(folders: list[Path]) -> list[dict[str, Any]]:
    """Return the valid entries of the journals in `folders`, without lines that a kill or a crash of the machine damaged."""
    entries = []
    for path in _existing(folders, JOURNAL_FILE):
        for line in read_foreign_lines(path, MOST_JSON_BYTES):
            with contextlib.suppress(IotwinError):
                entries.append(decode_foreign(line, dict[str, Any], path))
    samples = {kind: [entry for entry in entries if entry.get("kind") == kind] for kind in schema.SAMPLES}
    # One table for all samples of a kind is made faster than one for each sample. Damaged samples are rare.
    sound = tuple(kind for kind, rows in samples.items() if _are_samples(rows, kind))
    return [entry for entry in entries if entry.get("kind") in sound or _is_entry(entry)]


def _is_entry(entry: dict[str, Any]) -> bool:
    kind = entry.get("kind")
    if kind == "manifest":
        return "manifest" in entry
    expected = _ENTRIES.get(kind) if isinstance(kind, str) else None
    try:
        if expected is not None:
            msgspec.convert(entry, expected)
            return True
        return kind in schema.SAMPLES and _are_samples([entry], kind)
    except _REFUSED:
        return False


def _are_samples(entries: list[dict[str, Any]], kind: str) -> bool:
    """Return True if all entries are rows of the table of samples `kind`. One damaged entry may hide that others are sound."""
    try:
        rows_table(entries, schema.SAMPLES[kind])
    except _REFUSED:
        return False
    return all(entry.get("time_ns") is not None for entry in entries)


def _apply_journal(manifest: Manifest, journal: list[dict[str, Any]]) -> None:
    for entry in journal:
        if entry["kind"] == "clock":
            manifest.clock.append(msgspec.convert(entry, ClockPair))
        elif entry["kind"] == "ledger":
            manifest.seen, manifest.lost = entry["seen"], entry["lost"]
        elif entry["kind"] == "ring":
            manifest.ring = msgspec.convert({name: entry[name] for name in Ring.__struct_fields__}, Ring)


def _close_ledger(manifest: Manifest) -> None:
    """Count calls that the kernel saw and did not drop, but that are in no table, as lost by the recorder."""
    if manifest.seen is None:
        return
    recorded = manifest.events + (manifest.ring.overwritten_events if manifest.ring else 0)
    unaccounted = manifest.seen - sum(manifest.lost.get(cause, 0) for cause in _SEEN_AND_LOST) - recorded
    if unaccounted > 0:
        manifest.lost["recorder"] = max(unaccounted, manifest.lost.get("recorder", 0))
    manifest.seen = max(manifest.seen, recorded)


def _event_tables(paths: list[Path], files: FileTable, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the events (schema.EVENTS) in the files `paths` in order of start. Set counts, start and end of the manifest."""
    counts = np.zeros(len(_OP_NAMES), np.int64)
    bounds = _clock_bounds(manifest.clock)
    damaged = 0
    for records in sorted_chunks(paths, EVENT, "start_ns"):
        valid = records[_is_valid(records, bounds)]
        damaged += len(records) - len(valid)
        chunk = _since(valid, manifest.ring)
        if not len(chunk):
            continue
        number = chunk["call_flags_cpu"] & np.uint32(1023)
        code = _CODE_OF_NUMBER[number]
        counts += np.bincount(code, minlength=len(_OP_NAMES))
        manifest.start_ns = manifest.start_ns or int(chunk["start_ns"][0])
        manifest.end_ns = max(manifest.end_ns, int((chunk["start_ns"] + chunk["duration_ns"]).max()))
        file_id = files.assign(chunk, number)
        yield _event_table(chunk, code, file_id, np.isin(number, _OPEN_NUMBERS))
    manifest.counts = {name: int(count) for name, count in zip(_OP_NAMES, counts, strict=True) if count}
    if damaged:
        manifest.notes.append(f"left out: {counted(damaged, 'damaged record')}, as a machine that goes down leaves them")
        manifest.lost["recorder"] = damaged


def _since(records: NDArray[np.void], ring: Ring | None) -> NDArray[np.void]:
    """Return those of `records` that began since `ring.kept_from_ns`, and count the others as overwritten."""
    if ring is None:
        return records
    kept = records[records["start_ns"] >= ring.kept_from_ns]
    ring.overwritten_events += len(records) - len(kept)
    ring.overwritten_bytes += records.nbytes - kept.nbytes
    return kept


def _clock_bounds(clock: list[ClockPair]) -> tuple[int, int]:
    """Return the first and last CLOCK_MONOTONIC ns at which a valid event can begin. Events may precede the first reading."""
    times = [pair.monotonic_ns for pair in clock]
    return (0, max(times) + _CLOCK_SLACK_NS) if times else (0, LAST_NS)


def _is_valid(records: NDArray[np.void], bounds: tuple[int, int]) -> NDArray[np.bool_]:
    """Return a mask of the valid `records`. A crash of the machine may leave zeros or random bytes instead of a record."""
    start, duration = records["start_ns"], records["duration_ns"]
    return np.asarray(
        ((records["header"] == EVENT.itemsize - RING_HEADER_BYTES) | (records["header"] == 0))
        & (records["pid"] > 0)
        & (records["pid"] <= _MOST_PID)
        & (records["tid"] <= _MOST_PID)
        & (start > bounds[0])
        & (start <= bounds[1])
        & (duration >= 0)
        & (duration <= LAST_NS - start)
        & (records["inode"] < 1 << 63)
        & (np.abs(records["offset"].astype(np.float64)) <= LAST_NS)
        & (np.abs(records["result"].astype(np.float64)) <= LAST_NS)
    )


def _event_table(
    chunk: NDArray[np.void], code: NDArray[np.int16], file_id: NDArray[np.int32], is_open: NDArray[np.bool_]
) -> pa.Table:
    # cp requests nearly 2**63 bytes of copy_file_range, more than the limit for a number in a trace.
    requested = np.minimum(chunk["requested"], _MOST_REQUESTED).astype(np.int64)
    flags = ((chunk["call_flags_cpu"] >> 14) & 7).astype(np.int32)  # RAW_FLAG_DIRECT, _APPEND, _WRITABLE
    flags = (flags & 3) | ((flags & 4) << 2)
    flags |= np.where(is_open & ((requested & _O_CREAT) != 0), schema.FLAG_CREATE, 0)
    flags |= np.where(is_open & ((requested & _O_TRUNC) != 0), schema.FLAG_TRUNCATE, 0)
    columns: dict[str, tuple[NDArray[np.generic], NDArray[np.bool_] | None]] = {
        "start_ns": (chunk["start_ns"], None),
        "duration_ns": (chunk["duration_ns"], None),
        "pid": (chunk["pid"], None),
        "tid": (chunk["tid"], None),
        "file_id": (file_id, file_id < 0),
        "fd": (chunk["fd"], None),
        "offset": (chunk["offset"], chunk["offset"] < 0),
        "requested": (requested, is_open | (requested == 0)),
        "result": (chunk["result"], None),
        "flags": (flags.astype(np.int32), None),
        "cpu": ((chunk["call_flags_cpu"] >> 18).astype(np.int16), None),
    }
    arrays = [
        labels(code, _OP_NAMES) if field.name == "op" else column(columns[field.name][0], field.type, columns[field.name][1])
        for field in schema.EVENTS
    ]
    return pa.Table.from_arrays(arrays, schema=schema.EVENTS)


def _write_log_tables(directory: Path, manifest: Manifest, since_ns: int) -> list[tuple[int, int]]:
    """Write the tables of phases and parts of steps from the job's logs. Never raises because of what a log contains.

    Phases and parts that began before `since_ns` are left out. Returns the jumps of a virtual clock, as JobLog.jumps.
    """
    phases, parts = rows_table([], schema.PHASES), rows_table([], schema.PARTS)
    jumps: list[tuple[int, int]] = []
    if manifest.clock:
        span_ns = manifest.clock[0].realtime_ns, manifest.clock[-1].realtime_ns
        try:
            logged = read_log(_logs(directory), one_by_one(realtime_to_monotonic(manifest.clock)), span_ns)
            logged.phases, logged.parts = (
                [row for row in rows if row["start_ns"] >= since_ns] for rows in (logged.phases, logged.parts)
            )
            parts, jumps = rows_table(logged.parts, schema.PARTS), logged.jumps
            if manifest.parameters.get("phases") == NO_PHASES:
                manifest.notes.append("the phases in the job's log are left out (--phases none)")
            else:
                phases = rows_table(logged.phases, schema.PHASES)
            if logged.torn:
                manifest.notes.append(f"left out: {counted(logged.torn, 'torn MLLOG line')} of the job's output")
        except (ArithmeticError, ValueError, TypeError, LookupError, OSError, RecursionError, pa.ArrowException) as error:
            manifest.notes.append(f"the phases are not known: the job's log could not be read ({type(error).__name__})")
    else:
        manifest.notes.append("the phases are not known: the recording holds no reading of the clocks")
    write_table(directory, "phases.parquet", schema.PHASES, phases)
    if parts.num_rows:
        write_table(directory, "parts.parquet", schema.PARTS, parts)
    return jumps


def _logs(directory: Path) -> list[Path]:
    logs = directory / "logs"
    return sorted(logs.iterdir()) if logs.is_dir() else []


def _write_samples(directory: Path, journal: list[dict[str, Any]]) -> None:
    for kind, expected in schema.SAMPLES.items():
        rows = [entry for entry in journal if entry["kind"] == kind]
        if rows:
            write_table(directory, f"samples/{kind}.parquet", expected, rows_table(rows, expected))
