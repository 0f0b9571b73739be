"""Write an imported recording as a trace; derive the tables of files and processes from the calls."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.trace_store import schema
from iotwin.trace_store.columns import rows_table
from iotwin.trace_store.importers.imported_events import ImportedEvents
from iotwin.trace_store.importers.sorted_calls import Runs
from iotwin.trace_store.manifest import ClockPair, Host, Manifest, Target
from iotwin.trace_store.process_roles import process_roles
from iotwin.trace_store.trace_directory import made_trace
from iotwin.trace_store.writer import write_event_parts, write_tables


@dataclass
class Imported:
    """The tables of an imported recording. All of them are optional."""

    calls: Runs = field(default_factory=Runs)
    torn: dict[str, int] = field(default_factory=dict)  # number of torn lines by file name
    notes: list[str] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)  # rows of schema.PROCESSES; a row may lack columns
    phases: list[dict[str, Any]] = field(default_factory=list)  # rows of schema.PHASES
    parts: list[dict[str, Any]] = field(default_factory=list)  # rows of schema.PARTS
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # rows, by kind in schema.SAMPLES
    block: pa.Table | None = None
    gpu: pa.Table | None = None
    clock: list[ClockPair] = field(default_factory=list)
    host: Host = field(default_factory=lambda: Host("", "", 0, 0, ""))
    command: list[str] = field(default_factory=list)


def sorted_table(rows: list[dict[str, Any]], expected: pa.Schema, order: str) -> pa.Table | None:
    """Return `rows` as a table of the schema `expected`, sorted by the column `order`; None if there are no rows."""
    return pa.Table.from_pylist(sorted(rows, key=lambda row: row[order]), schema=expected) if rows else None


def write_imported(imported: Imported, directory: Path, source: Path, format_name: str) -> Manifest:
    """Write the trace at `directory`, whole or not at all, and return its manifest.

    Raises IotwinError if the recording is empty or the directory cannot be written.
    """
    if not imported.calls.rows and imported.block is None and imported.gpu is None:
        raise IotwinError(f"{source} holds no call that {format_name} would have: choose another --format, or check the path")
    torn_notes = [f"left out: {counted(count, 'torn line')} of {name}" for name, count in imported.torn.items() if count]
    manifest = Manifest(
        status="complete",
        backend=f"import {format_name}",
        host=imported.host,
        target=Target(command=imported.command),
        notes=[*imported.notes, *torn_notes, f"imported from {source.name}"],
        clock=imported.clock,
    )
    if imported.calls.impossible:
        manifest.notes.append(f"left out: {counted(imported.calls.impossible, 'call')} with impossible times or sizes")
    phases = sorted(imported.phases, key=lambda row: (row["start_ns"], -row["end_ns"]))
    samples = {kind: rows_table(rows, schema.SAMPLES[kind]) for kind, rows in imported.samples.items() if rows}
    try:
        with made_trace(directory) as made:
            used = ImportedEvents(imported.calls)
            manifest.events = write_event_parts(made / "events.parquet", used.parts())
            manifest.counts = used.counts()
            files, read_by_pid = used.files()
            manifest.start_ns, manifest.end_ns = _extent(imported, used)
            processes = _processes(used.pids(), imported.processes, read_by_pid)
            write_tables(
                made, manifest, files, rows_table(processes, schema.PROCESSES), rows_table(phases, schema.PHASES), samples,
                imported.block, imported.gpu, rows_table(imported.parts, schema.PARTS) if imported.parts else None,
            )  # fmt: skip
    except OSError as error:
        raise IotwinError(f"{directory} cannot be written: {error.strerror or error}") from None
    return manifest


def _extent(imported: Imported, used: ImportedEvents) -> tuple[int, int]:
    extents = [used.extent] if imported.calls.rows else []
    for table, begin in ((imported.block, "issue_ns"), (imported.gpu, "start_ns")):
        if table is not None and table.num_rows:
            start = table[begin].to_numpy()
            extents.append((int(start.min()), int((start + pc.fill_null(table["duration_ns"], 0).to_numpy()).max())))
    extents += [(row["start_ns"], row["end_ns"]) for row in imported.phases]
    return min(first for first, _ in extents), max(last for _, last in extents)


def _processes(pids: list[int], known: list[dict[str, Any]], read_by_pid: dict[int, int]) -> list[dict[str, Any]]:
    """Return a row of schema.PROCESSES for each process in `known` or `pids`, in order of start.

    `read_by_pid`: data-set bytes that each process read, from which the process's role follows.
    """
    rows = {row["pid"]: {"comm": "", "command_line": None, "ppid": None, **row} for row in known}
    for pid in pids:
        rows.setdefault(pid, {"pid": pid, "ppid": None, "comm": "", "command_line": None})
    listed = list(rows.values())
    sizes = np.array([read_by_pid.get(row["pid"], 0) for row in listed], np.int64)
    executed = [row.get("started_program", False) for row in listed]
    roles = process_roles([row["pid"] for row in listed], [row["ppid"] or 0 for row in listed], executed, sizes)
    for row, role in zip(listed, roles, strict=True):
        row.setdefault("role", role)
    return sorted(listed, key=lambda row: (row.get("start_ns") or 0, row["pid"]))
