"""Writing a finished trace: Parquet tables under temporary names, then the manifest that makes them a trace."""

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tracing_tools.trace import schema
from tracing_tools.trace.manifest import Manifest, write_manifest

# Times and offsets mostly grow by little: deltas pack them into a byte or two. Labels and ids repeat: dictionaries do.
_DICTIONARY_COLUMNS = ["op", "pid", "tid", "file_id", "fd", "requested", "result", "flags", "cpu"]
_DELTA_COLUMNS = {"start_ns": "DELTA_BINARY_PACKED", "duration_ns": "DELTA_BINARY_PACKED", "offset": "DELTA_BINARY_PACKED"}
_ROWS_PER_PART = 1 << 20


def write_events(directory: Path, tables: Iterable[pa.Table]) -> int:
    """Write event tables (schema EVENTS, already in order of start) as parts under `directory`; return the rows written."""
    partial = directory.with_name(directory.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rows = 0
    for number, table in enumerate(_parts(tables)):
        pq.write_table(
            table.cast(schema.EVENTS), partial / f"part-{number:05d}.parquet", compression="zstd", compression_level=3,
            use_dictionary=_DICTIONARY_COLUMNS, column_encoding=_DELTA_COLUMNS, row_group_size=_ROWS_PER_PART // 8,
            write_page_checksum=True,
        )  # fmt: skip
        rows += table.num_rows
    shutil.rmtree(directory, ignore_errors=True)
    partial.replace(directory)
    return rows


def _parts(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    waiting = 0
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        waiting += table.num_rows
        if waiting >= _ROWS_PER_PART:
            yield pa.concat_tables(pending)
            pending, waiting = [], 0
    if pending:
        yield pa.concat_tables(pending)


def write_table(path: Path, expected: pa.Schema, columns: Mapping[str, Any] | pa.Table) -> None:
    """Write one small table (columns by name, or an Arrow table) under a temporary name, then rename it into place."""
    table = (
        columns if isinstance(columns, pa.Table) else pa.table({name: columns[name] for name in expected.names}, schema=expected)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    pq.write_table(table.cast(expected), partial, compression="zstd", write_page_checksum=True)
    partial.replace(path)


def write_trace(
    directory: Path,
    manifest: Manifest,
    events: Iterable[pa.Table],
    files: Mapping[str, Any] | pa.Table,
    processes: Mapping[str, Any] | pa.Table,
    phases: Mapping[str, Any] | pa.Table,
    samples: Mapping[str, Mapping[str, Any] | pa.Table] | None = None,
    block: Mapping[str, Any] | pa.Table | None = None,
    gpu: Mapping[str, Any] | pa.Table | None = None,
) -> None:
    """Write a whole trace; `manifest.status` and the counts must already say what the tables hold, except `events`.

    `block` and `gpu` are left out, not empty, when they were not traced.
    """
    directory.mkdir(parents=True, exist_ok=True)
    manifest.events = write_events(directory / "events.parquet", events)
    write_table(directory / "files.parquet", schema.FILES, files)
    write_table(directory / "processes.parquet", schema.PROCESSES, processes)
    write_table(directory / "phases.parquet", schema.PHASES, phases)
    if block is not None:
        write_table(directory / "block.parquet", schema.BLOCK, block)
    if gpu is not None:
        write_table(directory / "gpu.parquet", schema.GPU, gpu)
    for kind, columns in (samples or {}).items():
        write_table(directory / "samples" / f"{kind}.parquet", schema.SAMPLES[kind], columns)
    write_manifest(directory, manifest)
