"""Write a finished trace: first the Parquet tables, each whole or not at all, then the manifest, which makes them a trace."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from iotwin.common.files import folder_whole, open_whole
from iotwin.common.processes.parallel import in_threads
from iotwin.common.removal import remove_listed
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Manifest, write_manifest

# Columns that repeat values get a dictionary. Times and offsets, which grow in small steps, are stored as differences instead.
_DICTIONARY_COLUMNS = ["op", "pid", "tid", "file_id", "fd", "requested", "result", "flags", "cpu"]
_DELTA_COLUMNS = {"start_ns": "DELTA_BINARY_PACKED", "duration_ns": "DELTA_BINARY_PACKED", "offset": "DELTA_BINARY_PACKED"}
_ROWS_PER_PART = 1 << 20
_ROWS_PER_GROUP = 1 << 16


def write_events(directory: Path, tables: Iterable[pa.Table]) -> int:
    """Write `tables` of events (schema.EVENTS, in order of start) as Parquet files in `directory`. Return the number of rows."""
    rows = part_rows = parts = 0
    writer: pq.ParquetWriter | None = None
    with _parts_of(directory) as partial:
        try:
            for table in _row_groups(tables):
                if writer is None or part_rows >= _ROWS_PER_PART:
                    if writer is not None:
                        writer.close()
                    writer = _event_writer(partial / f"part-{parts:05d}.parquet")
                    parts, part_rows = parts + 1, 0
                writer.write_table(table.cast(schema.EVENTS), row_group_size=_ROWS_PER_GROUP)
                part_rows += table.num_rows
                rows += table.num_rows
        finally:
            if writer is not None:
                writer.close()
    return rows


def write_event_parts(directory: Path, parts: Sequence[Iterable[pa.Table]]) -> int:
    """Write each of `parts`, tables of events, as a Parquet file in `directory`, several at once. Return the total of rows."""
    with _parts_of(directory) as partial:

        def write(index: int) -> int:
            rows = 0
            with _event_writer(partial / f"part-{index:05d}.parquet") as writer:
                for table in parts[index]:
                    writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
                    rows += table.num_rows
            return rows

        return sum(in_threads(write, range(len(parts))))


@contextmanager
def _parts_of(directory: Path) -> Iterator[Path]:
    with folder_whole(directory, below=directory.parent) as parts:
        yield parts
        remove_listed(directory.parent, [directory.name])


def _event_writer(path: Path) -> pq.ParquetWriter:
    return pq.ParquetWriter(
        path,
        schema.EVENTS,
        compression="zstd",
        compression_level=3,
        use_dictionary=_DICTIONARY_COLUMNS,
        column_encoding=_DELTA_COLUMNS,
        write_page_checksum=True,
    )


def _row_groups(tables: Iterable[pa.Table]) -> Iterable[pa.Table]:
    """Combine small tables into larger ones, since ParquetWriter makes at least one row group of each table."""
    waiting = 0
    pending: list[pa.Table] = []
    for table in tables:
        pending.append(table)
        waiting += table.num_rows
        if waiting >= _ROWS_PER_GROUP:
            yield pa.concat_tables(pending)
            pending, waiting = [], 0
    if pending:
        yield pa.concat_tables(pending)


def write_table(directory: Path, name: str, expected: pa.Schema, columns: Mapping[str, Any] | pa.Table) -> None:
    """Write a small table as the file `name` of the trace `directory`, whole or not at all.

    `columns`: an Arrow table, or columns by name; columns of `expected` that it lacks become null.
    """
    if not isinstance(columns, pa.Table):
        rows = len(next(iter(columns.values())))
        columns = pa.table({name: columns.get(name, [None] * rows) for name in expected.names}, schema=expected)
    table = columns
    with open_whole(directory / name, below=directory) as file:
        pq.write_table(table.cast(expected), file, compression="zstd", write_page_checksum=True)


def write_tables(
    directory: Path,
    manifest: Manifest,
    files: Mapping[str, Any] | pa.Table,
    processes: Mapping[str, Any] | pa.Table,
    phases: Mapping[str, Any] | pa.Table,
    samples: Mapping[str, Mapping[str, Any] | pa.Table] | None = None,
    block: Mapping[str, Any] | pa.Table | None = None,
    gpu: Mapping[str, Any] | pa.Table | None = None,
    parts: Mapping[str, Any] | pa.Table | None = None,
) -> None:
    """Write all tables of a trace except its events, and then the manifest, whose counts must match the tables.

    `block` and `gpu` must be None, not empty, if they were not traced. `parts` must be None if the job logged no parts.
    """
    tables = {"files": files, "processes": processes, "phases": phases, "parts": parts, "block": block, "gpu": gpu}
    for name, table in tables.items():
        if table is not None:
            write_table(directory, f"{name}.parquet", schema.TABLES[name], table)
    for kind, columns in (samples or {}).items():
        write_table(directory, f"samples/{kind}.parquet", schema.SAMPLES[kind], columns)
    write_manifest(directory, manifest)
