"""Writing a finished trace: Parquet tables under temporary names, then the manifest that makes them a trace."""

import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from common.files import made_whole
from common.parallel import in_threads
from tracing_tools.trace import schema
from tracing_tools.trace.manifest import Manifest, write_manifest

# Times and offsets mostly grow by little: deltas pack them into a byte or two. Labels and ids repeat: dictionaries do.
_DICTIONARY_COLUMNS = ["op", "pid", "tid", "file_id", "fd", "requested", "result", "flags", "cpu"]
_DELTA_COLUMNS = {"start_ns": "DELTA_BINARY_PACKED", "duration_ns": "DELTA_BINARY_PACKED", "offset": "DELTA_BINARY_PACKED"}
_ROWS_PER_PART = 1 << 20
_ROWS_PER_GROUP = 1 << 16


def write_events(directory: Path, tables: Iterable[pa.Table]) -> int:
    """Write event tables (schema EVENTS, already in order of start) as parts under `directory`; return the rows written."""
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
    """Write event tables as `write_events` does, each of `parts` by a thread of its own; return the rows written."""
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
    """Yield an empty folder that takes the place of `directory` when the block has ended."""
    with made_whole(directory) as partial:
        shutil.rmtree(partial, ignore_errors=True)  # what a writer that was killed left
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(directory, ignore_errors=True)


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
    """Gather small tables, so that a row group is worth its overhead."""
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


def write_table(path: Path, expected: pa.Schema, columns: Mapping[str, Any] | pa.Table) -> None:
    """Write one small table (columns by name, or an Arrow table) under a temporary name, then rename it into place.

    A column that is left out and may be null is.
    """
    if not isinstance(columns, pa.Table):
        rows = len(next(iter(columns.values())))
        columns = pa.table({name: columns.get(name, [None] * rows) for name in expected.names}, schema=expected)
    table = columns
    path.parent.mkdir(parents=True, exist_ok=True)
    with made_whole(path) as partial:
        pq.write_table(table.cast(expected), partial, compression="zstd", write_page_checksum=True)


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
    """Write all of a trace but its events, which are there; then the manifest, which makes them one.

    `manifest.status` and the counts must already say what the tables hold. `block` and `gpu` are left out, not empty, when they
    were not traced, and `parts` when the job logged none.
    """
    write_table(directory / "files.parquet", schema.FILES, files)
    write_table(directory / "processes.parquet", schema.PROCESSES, processes)
    write_table(directory / "phases.parquet", schema.PHASES, phases)
    if block is not None:
        write_table(directory / "block.parquet", schema.BLOCK, block)
    if gpu is not None:
        write_table(directory / "gpu.parquet", schema.GPU, gpu)
    if parts is not None:
        write_table(directory / "parts.parquet", schema.PARTS, parts)
    for kind, columns in (samples or {}).items():
        write_table(directory / "samples" / f"{kind}.parquet", schema.SAMPLES[kind], columns)
    write_manifest(directory, manifest)
