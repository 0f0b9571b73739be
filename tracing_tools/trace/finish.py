"""Finishing a recording: raw records become Parquet tables sorted by start, and raw/ goes away.

The same function recovers a recording whose recorder was killed; it then uses what whole records there are.
"""

import json
import mmap
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.block_table import write_blocks
from tracing_tools.trace.clocks import step_notes
from tracing_tools.trace.columns import column, labels, rows_table
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.file_table import FileTable
from tracing_tools.trace.gpu_table import gpu_table
from tracing_tools.trace.manifest import ClockPair, Manifest, read_manifest, write_manifest
from tracing_tools.trace.mllog import read_phases
from tracing_tools.trace.process_table import process_table
from tracing_tools.trace.recording import BLOCKS_FILE, EVENTS_FILE, GPU_FILE, JOURNAL_FILE, NAMES_FILE, RAW, is_being_recorded
from tracing_tools.trace.records import EVENT, LIFE_TYPES, NameRecord, read_names
from tracing_tools.trace.sorted_records import sorted_chunks
from tracing_tools.trace.syscalls import CALLS, NUMBER_OF_OP, OPEN_KINDS
from tracing_tools.trace.writer import write_events, write_table

_O_CREAT, _O_TRUNC = 0o100, 0o1000
_OPEN_NUMBERS = np.array([number for number, kind in CALLS.values() if kind in OPEN_KINDS])
_OP_NAMES = list(NUMBER_OF_OP)
_CODE_OF_NUMBER = np.zeros(1024, np.int16)
for _code, _name in enumerate(_OP_NAMES):
    _CODE_OF_NUMBER[NUMBER_OF_OP[_name]] = _code


def recover_trace(directory: Path) -> Manifest:
    """Finish the cut-off recording at `directory` up to its last whole record and return its manifest."""
    manifest = read_manifest(directory)
    if manifest.status != "recording":
        raise IotwinError(f"{directory} is already {manifest.status}; there is nothing to recover")
    if is_being_recorded(directory):
        raise IotwinError(f"{directory} is being recorded right now; end that iotwin trace first")
    if not (directory / RAW / EVENTS_FILE).exists():
        raise IotwinError(f"{directory} has no raw records left; nothing can be recovered")
    manifest.notes.append("recovered: the recorder was cut off; events of its last moments may be missing")
    return finish_trace(directory, manifest, status="recovered")


def finish_trace(directory: Path, manifest: Manifest, status: str = "complete") -> Manifest:
    """Turn the raw records of `directory` into tables, set the manifest's counts and status, remove raw/."""
    # Arrow's own pools keep what was freed, which would be a good part of what a tracer holds.
    pa.set_memory_pool(pa.system_memory_pool())
    raw = directory / RAW
    journal = _read_journal(raw / JOURNAL_FILE)
    _apply_journal(manifest, journal)

    files = FileTable(log_paths={os.fsencode(path.resolve()) for path in (directory / "logs").iterdir()})
    lives = _read_names(raw / NAMES_FILE, files)
    manifest.events = write_events(directory / "events.parquet", _event_tables(raw / EVENTS_FILE, files, manifest))
    if (raw / BLOCKS_FILE).exists():
        write_blocks(raw / BLOCKS_FILE, directory / "block.parquet", files)
    write_table(directory / "files.parquet", schema.FILES, files.table())
    dataset_bytes = files.dataset_bytes_by_pid()
    processes = process_table(lives, dataset_bytes, manifest.target.root_pid, _containers(journal))
    write_table(directory / "processes.parquet", schema.PROCESSES, processes)
    if (raw / GPU_FILE).exists():
        write_table(directory / "gpu.parquet", schema.GPU, gpu_table(raw / GPU_FILE))
    _write_phases(directory, manifest)
    _write_samples(directory, journal)

    _close_ledger(manifest)
    manifest.notes += step_notes(manifest.clock)
    wall_s = max(manifest.end_ns - manifest.start_ns, 1) / 1e9
    manifest.cost.events_per_s = round(manifest.events / wall_s, 1)
    manifest.status = status
    write_manifest(directory, manifest)
    shutil.rmtree(raw)
    return manifest


def _read_names(path: Path, files: FileTable) -> list[NameRecord]:
    """Hand the names of files to `files`; return the records of processes' lives, which are few."""
    lives = []
    with path.open("rb") as file:
        if not path.stat().st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for record in read_names(content):
                if record.type in LIFE_TYPES:
                    lives.append(record)
                else:
                    files.add_name(record)
    return lives


def _read_journal(path: Path) -> list[dict[str, Any]]:
    lines = []
    for line in path.read_bytes().split(b"\n"):
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue  # the last line of a killed recorder may be torn
    return lines


def _apply_journal(manifest: Manifest, journal: list[dict[str, Any]]) -> None:
    for entry in journal:
        if entry["kind"] == "clock":
            manifest.clock.append(ClockPair(entry["monotonic_ns"], entry["realtime_ns"], entry["uncertainty_ns"]))
        elif entry["kind"] == "ledger":
            manifest.seen, manifest.lost = entry["seen"], entry["lost"]


def _containers(journal: list[dict[str, Any]]) -> dict[int, str]:
    """Return the containers' names by cgroup id."""
    return {entry["cgroup"]: entry["name"] for entry in journal if entry["kind"] == "container"}


def _close_ledger(manifest: Manifest) -> None:
    """Whatever the kernel saw, did not count as dropped and did not reach the tables was lost with the recorder."""
    if manifest.seen is None:
        return
    unaccounted = manifest.seen - manifest.lost.get("ring_full", 0) - manifest.lost.get("entry_missed", 0) - manifest.events
    if unaccounted > 0:
        manifest.lost["recorder"] = unaccounted
    manifest.seen = max(manifest.seen, manifest.events)


def _event_tables(path: Path, files: FileTable, manifest: Manifest) -> Iterator[pa.Table]:
    """Yield the events in order of start, and set the manifest's counts and, from the events, the ends of the run."""
    counts = np.zeros(len(_OP_NAMES), np.int64)
    for chunk in sorted_chunks(path, EVENT, "start_ns"):
        number = chunk["call_flags_cpu"] & np.uint32(1023)
        code = _CODE_OF_NUMBER[number]
        counts += np.bincount(code, minlength=len(_OP_NAMES))
        manifest.start_ns = manifest.start_ns or int(chunk["start_ns"][0])
        manifest.end_ns = max(manifest.end_ns, int((chunk["start_ns"] + chunk["duration_ns"]).max()))
        file_id = files.assign(chunk, number)
        yield _event_table(chunk, code, file_id, np.isin(number, _OPEN_NUMBERS))
    manifest.counts = {name: int(count) for name, count in zip(_OP_NAMES, counts, strict=True) if count}


def _event_table(
    chunk: NDArray[np.void], code: NDArray[np.int16], file_id: NDArray[np.int32], is_open: NDArray[np.bool_]
) -> pa.Table:
    requested = chunk["requested"].astype(np.int64)
    flags = ((chunk["call_flags_cpu"] >> 14) & 7).astype(np.int32)  # above the file type: direct, append, writable
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


def realtime_to_monotonic(clock: list[ClockPair]) -> Callable[[int], int]:
    """Return the function from UNIX nanoseconds to CLOCK_MONOTONIC, linear between the recorded clock pairs."""
    if not clock:
        raise IotwinError("the trace holds no reading of the clocks, so its log times cannot be placed; record again")
    real = np.array([pair.realtime_ns for pair in clock], np.int64)
    offset = np.array([pair.monotonic_ns - pair.realtime_ns for pair in clock], np.int64)
    # Interpolating the small drift, not the times themselves, keeps the precision of nanoseconds in float64.
    return lambda time_ns: int(time_ns + offset[0] + np.interp(time_ns - real[0], real - real[0], offset - offset[0]))


def _write_phases(directory: Path, manifest: Manifest) -> None:
    span_ns = manifest.clock[0].realtime_ns, manifest.clock[-1].realtime_ns
    rows, torn = read_phases(sorted((directory / "logs").iterdir()), realtime_to_monotonic(manifest.clock), span_ns)
    if torn:
        manifest.notes.append(f"{torn} MLLOG lines of the job's output were torn and left out")
    write_table(directory / "phases.parquet", schema.PHASES, rows_table(rows, schema.PHASES))


def _write_samples(directory: Path, journal: list[dict[str, Any]]) -> None:
    for kind, expected in schema.SAMPLES.items():
        rows = [entry for entry in journal if entry["kind"] == kind]
        if rows:
            write_table(directory / "samples" / f"{kind}.parquet", expected, rows_table(rows, expected))
