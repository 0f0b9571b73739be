"""What an importer found, and how it becomes a trace: files and processes from the calls, everything in order of start."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from tracing_tools.trace import schema
from tracing_tools.trace.classify import file_kind, process_roles
from tracing_tools.trace.errors import IotwinError
from tracing_tools.trace.manifest import ClockPair, Host, Manifest, Target
from tracing_tools.trace.records import TYPE_REGULAR
from tracing_tools.trace.writer import write_trace

_LABEL = pa.dictionary(pa.int32(), pa.string())

# The calls of an importer: events whose file is named by its path (null: none). Times may be of any clock.
CALLS = pa.schema([
    ("start_ns", pa.int64()), ("duration_ns", pa.int64()), ("op", _LABEL), ("pid", pa.int32()), ("tid", pa.int32()),
    ("path", _LABEL),
    ("fd", pa.int32()), ("offset", pa.int64()), ("requested", pa.int64()), ("result", pa.int64()),
])  # fmt: skip


@dataclass
class Imported:
    """A foreign recording in our terms; tables are optional, torn lines are counted by file name."""

    calls: pa.Table  # CALLS
    torn: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    processes: list[dict[str, Any]] = field(default_factory=list)  # what is known of them, by names of schema.PROCESSES
    phases: list[dict[str, Any]] = field(default_factory=list)
    samples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    block: pa.Table | None = None
    gpu: pa.Table | None = None
    clock: list[ClockPair] = field(default_factory=list)
    host: Host = field(default_factory=lambda: Host("", "", 0, 0, ""))
    command: list[str] = field(default_factory=list)


def calls_table(**columns: Any) -> pa.Table:
    """Return a CALLS table of the given columns; those left out are null, `tid` is the pid and `fd` -1."""
    rows = len(columns["start_ns"])
    columns = {"tid": columns["pid"], "fd": pa.array(np.full(rows, -1, np.int32)), "op": None, **columns}
    arrays = [
        columns[f.name] if columns.get(f.name) is not None else pa.nulls(rows, f.type) for f in CALLS
    ]  # fmt: skip
    return pa.table([_as_type(array, f.type) for array, f in zip(arrays, CALLS, strict=True)], schema=CALLS)


def same_label(text: str, rows: int) -> pa.DictionaryArray:
    """Return a label column that says `text` in every row."""
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), [text])


def _as_type(column: Any, kind: pa.DataType) -> pa.ChunkedArray:
    chunked = column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([pa.array(column)])
    return chunked if chunked.type == kind else chunked.cast(kind)


def write_imported(imported: Imported, directory: Path, source: Path, format_name: str) -> Manifest:
    """Write the trace at `directory`, which appears under that name when it is whole; return its manifest.

    Raises IotwinError when nothing was found or the directory cannot be written.
    """
    calls = imported.calls
    if not calls.num_rows and imported.block is None and imported.gpu is None:
        raise IotwinError(f"{source} holds no call that {format_name} would have: choose another --format, or check the path")
    files, file_id, read_by_pid = _files(calls)
    counts = pc.value_counts(calls["op"].combine_chunks() if calls.num_rows else calls["op"]).to_pylist()
    manifest = Manifest(
        status="complete", backend=f"import {format_name}", host=imported.host, target=Target(command=imported.command),
        notes=[*imported.notes, *_torn_notes(imported.torn), f"imported from {source.name}"], clock=imported.clock,
        counts={entry["values"]: entry["counts"] for entry in counts},
    )  # fmt: skip
    manifest.start_ns, manifest.end_ns = _extent(imported)
    processes = _processes(calls, imported.processes, read_by_pid)
    phases = sorted(imported.phases, key=lambda row: (row["start_ns"], -row["end_ns"]))
    samples = {kind: _rows(rows, schema.SAMPLES[kind]) for kind, rows in imported.samples.items() if rows}
    partial = directory.with_name(f".{directory.name}.{os.getpid()}.partial")
    try:
        write_trace(
            partial, manifest, [_events(calls, file_id)], files, _rows(processes, schema.PROCESSES), _rows(phases, schema.PHASES),
            samples, imported.block, imported.gpu,
        )  # fmt: skip
        if directory.exists():
            shutil.rmtree(directory)
        partial.replace(directory)
    except OSError as error:
        raise IotwinError(f"{directory} cannot be written: {error.strerror or error}") from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def _torn_notes(torn: dict[str, int]) -> list[str]:
    return [f"{count} torn lines of {name} were left out" for name, count in torn.items() if count]


def _rows(rows: list[dict[str, Any]], expected: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([{name: row.get(name) for name in expected.names} for row in rows], schema=expected)


def _codes(column: pa.ChunkedArray) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the names of a label column and each row's code, -1 for null."""
    array = column.unify_dictionaries().combine_chunks() if column.num_chunks else pa.array([], column.type)
    codes: NDArray[np.int64] = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return array.dictionary.to_pylist(), codes


def _files(calls: pa.Table) -> tuple[pa.Table, NDArray[np.int64], dict[int, int]]:
    """Return the files table, each call's file_id (-1: none), and the data-set bytes that each pid read."""
    paths, code = _codes(calls["path"])
    ops, op = _codes(calls["op"])
    is_read, is_write = (np.array([name in group for name in ops], bool)[op] for group in (schema.READ_OPS, schema.WRITE_OPS))
    moved = np.maximum(calls["result"].to_numpy(), 0)
    named = code >= 0
    sums = [
        np.bincount(code[named & mine], weights=moved[named & mine], minlength=len(paths)) for mine in (is_read, is_write)
    ]  # fmt: skip
    kinds = [
        file_kind(path, TYPE_REGULAR if path.startswith("/") or read or written else 0, int(read), int(written), False)
        for path, read, written in zip(paths, *sums, strict=True)
    ]
    nothing: list[None] = [None] * len(paths)
    known = {"file_id": range(len(paths)), "path": paths, "kind": kinds}
    plain = pa.schema([(f.name, pa.string() if f.name == "kind" else f.type) for f in schema.FILES])
    table = pa.table({name: known.get(name, nothing) for name in plain.names}, schema=plain).cast(schema.FILES)
    of_dataset = np.array([kind == "dataset" for kind in kinds] + [False], bool)[code] & is_read
    pids, place = np.unique(calls["pid"].to_numpy()[of_dataset], return_inverse=True)
    sizes = np.bincount(place, weights=moved[of_dataset], minlength=len(pids)).astype(int)
    return table, code, dict(zip(pids.tolist(), sizes.tolist(), strict=True))


def _events(calls: pa.Table, file_id: NDArray[np.int64]) -> pa.Table:
    rows = calls.num_rows
    start = calls["start_ns"].to_numpy()
    columns = {name: calls[name] for name in schema.EVENTS.names if name in calls.column_names}
    columns["op"] = calls["op"].unify_dictionaries().cast(schema.EVENTS.field("op").type) if rows else calls["op"]
    columns |= {
        "file_id": pa.array(file_id.astype(np.int32), mask=file_id < 0), "flags": pa.array(np.zeros(rows, np.int32)),
        "cpu": pa.nulls(rows, pa.int16()),
    }  # fmt: skip
    table = pa.table({name: columns[name] for name in schema.EVENTS.names}).cast(schema.EVENTS)
    in_order = bool((start[1:] >= start[:-1]).all())
    return table if in_order else table.take(np.argsort(start, kind="stable"))


def _extent(imported: Imported) -> tuple[int, int]:
    firsts, lasts = [], []
    for table, begin in ((imported.calls, "start_ns"), (imported.block, "issue_ns"), (imported.gpu, "start_ns")):
        if table is not None and table.num_rows:
            start = table[begin].to_numpy()
            firsts.append(int(start.min()))
            lasts.append(int((start + pc.fill_null(table["duration_ns"], 0).to_numpy()).max()))
    firsts += [row["start_ns"] for row in imported.phases]
    lasts += [row["end_ns"] for row in imported.phases]
    return min(firsts), max(lasts)


def _processes(calls: pa.Table, known: list[dict[str, Any]], read_by_pid: dict[int, int]) -> list[dict[str, Any]]:
    """Return one row per process that is known or made a call, with a role where none is known."""
    rows = {row["pid"]: {"comm": "", "command_line": None, "ppid": None, **row} for row in known}
    for pid in pc.unique(calls["pid"]).to_pylist():
        rows.setdefault(pid, {"pid": pid, "ppid": None, "comm": "", "command_line": None})
    listed = list(rows.values())
    sizes = np.array([read_by_pid.get(row["pid"], 0) for row in listed], np.int64)
    executed = [row.get("started_program", False) for row in listed]
    roles = process_roles([row["pid"] for row in listed], [row["ppid"] or 0 for row in listed], executed, sizes)
    for row, role in zip(listed, roles, strict=True):
        row.setdefault("role", role)
    return sorted(listed, key=lambda row: (row.get("start_ns") or 0, row["pid"]))
