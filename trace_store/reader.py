"""Read a finished trace as Arrow batches or pandas frames."""

import itertools
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.compute import Expression

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Manifest, read_manifest
from iotwin.trace_store.table_checks import check_columns, check_rows

_BATCH_ROWS = 1 << 17


class Trace:
    """A finished trace on disk. Opening it reads only the manifest and the Parquet footers.

    Methods return tables as pandas frames with the columns of `schema`; integers that may be null are floats with NaN.
    """

    def __init__(self, path: Path | str, inferred: pd.DataFrame | None = None) -> None:
        """Open the trace at `path`. Raises IotwinError if it is missing, unfinished, truncated or not a trace.

        `inferred`: rows of schema.PHASES to use in place of the trace's phases, if the job logged none.
        """
        self.path = Path(path)
        self.inferred = inferred
        self.manifest: Manifest = read_manifest(self.path)
        if self.manifest.status == "recording":
            raise IotwinError(f"{self.path} is still recording or was cut off; finish it: iotwin recover {self.path}")
        files = self.path / "files.parquet"
        self._number_of_files = _footer(files, schema.FILES).num_rows if files.exists() else 0
        self._events = self._open_events()

    @property
    def event_parts(self) -> int:
        """The number of parts (Parquet files) of the events."""
        return len(self._events.files)

    @property
    def part_rows(self) -> list[int]:
        """The number of events in each part (Parquet file)."""
        return [_footer(Path(part)).num_rows for part in self._events.files]

    def part_begin_ns(self, part: int) -> int:
        """Return the start in ns of the first event of the Parquet file with the index `part`; 0 if it is empty."""
        return next((int(batch["start_ns"][0].as_py()) for batch in self.events(["start_ns"], parts=[part]) if batch.num_rows), 0)

    def in_flight(self, time_ns: int, parts: int, columns: Sequence[str]) -> pa.Table:
        """Return the events of the first `parts` Parquet files that end after `time_ns`, in order of start.

        Row groups whose statistics rule out such an event are not read.
        """
        found = [schema.EVENTS.empty_table().select(list(columns))]
        with _damage_in_one_line(self.path / "events.parquet"):
            for fragment in itertools.islice(self._events.get_fragments(), parts):
                late = [group.id for group in fragment.row_groups if _may_end_after(group.statistics, time_ns)]
                if late:
                    ends = pc.field("start_ns") + pc.field("duration_ns")
                    rows = fragment.subset(row_group_ids=late)
                    found.append(rows.to_table(schema.EVENTS, columns=list(columns), filter=ends > time_ns))
        table = pa.concat_tables(found).unify_dictionaries()
        check_rows(table, "events", self.path / "events.parquet", self._number_of_files)
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open the same trace."""
        return Trace, (self.path, self.inferred)

    def _open_events(self) -> ds.Dataset:
        directory = self.path / "events.parquet"
        parts = sorted(directory.glob("*.parquet"))
        rows = sum(_footer(part, schema.EVENTS).num_rows for part in parts)
        if rows != self.manifest.events:
            raise IotwinError(
                f"{directory} holds {rows} events but the manifest counts {self.manifest.events}: parts are missing; "
                "copy the trace again"
            )
        return _dataset([str(part) for part in parts], schema.EVENTS)

    def events(
        self,
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        batch_rows: int = _BATCH_ROWS,
        parts: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events in order of start, in batches of at most `batch_rows` rows.

        `where`: a pyarrow expression that selects events, such as ``pc.field("op") == "read"``. `parts`: indices of the Parquet
        files to read, None for all.
        """
        wanted = list(columns) if columns is not None else None
        # Threads would decode far ahead of a slow reader: 130 MiB of batches, and no less CPU time.
        events = self._events if parts is None else _dataset([self._events.files[part] for part in parts], schema.EVENTS)
        batches = events.to_batches(
            columns=wanted, filter=where, batch_size=batch_rows, use_threads=False, batch_readahead=1, fragment_readahead=1
        )
        while True:
            # An error within this block means a damaged file. So the `yield`, where the caller may fail, is outside.
            with _damage_in_one_line(self.path / "events.parquet"):
                batch = next(batches, None)
            if batch is None:
                return
            check_rows(batch, "events", self.path / "events.parquet", self._number_of_files)
            yield batch

    def events_frame(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> pd.DataFrame:
        """Return the events as one frame in order of start; the column `op` is categorical. The events must fit in memory."""
        wanted = list(columns) if columns is not None else None
        with _damage_in_one_line(self.path / "events.parquet"):
            table: pa.Table = self._events.to_table(columns=wanted, filter=where)
        check_rows(table, "events", self.path / "events.parquet", self._number_of_files)
        frame: pd.DataFrame = table.unify_dictionaries().to_pandas()
        return frame

    def files(self) -> pd.DataFrame:
        """Return the files table: one row per file, in order of file_id. Ids count from 0."""
        return self._table("files.parquet", schema.FILES)

    def processes(self) -> pd.DataFrame:
        """Return the processes table, one row per process, in order of start."""
        return self._table("processes.parquet", schema.PROCESSES)

    def phases(self) -> pd.DataFrame:
        """Return the phases in order of start: `inferred` if set, else the logged phases. The frame may be empty."""
        return self.inferred if self.inferred is not None else self._table("phases.parquet", schema.PHASES)

    def step_parts(self) -> pd.DataFrame | None:
        """Return the parts of steps and checkpoints in order of start; None if the job logged none."""
        return self._optional("parts.parquet", schema.PARTS)

    def block(self) -> pd.DataFrame | None:
        """Return the block requests in order of issue; None if they were not traced."""
        return self._optional("block.parquet", schema.BLOCK)

    def gpu(self) -> pd.DataFrame | None:
        """Return the accelerator activity in order of start; None if none was traced."""
        return self._optional("gpu.parquet", schema.GPU)

    def tables(self) -> dict[str, ds.Dataset]:
        """Return each table of the trace as an Arrow dataset, by name; samples are called samples_KIND."""
        files = {name: (self.path / f"{name}.parquet", columns) for name, columns in schema.TABLES.items()}
        files |= {
            f"samples_{kind}": (self.path / "samples" / f"{kind}.parquet", columns) for kind, columns in schema.SAMPLES.items()
        }
        found: dict[str, ds.Dataset] = {"events": self._events}
        for name, (path, columns) in files.items():
            if path.exists():
                _footer(path, columns)
                found[name] = _dataset(str(path), columns)
        return found

    def samples(self, kind: str) -> pd.DataFrame | None:
        """Return the samples of `kind`, a key of `schema.SAMPLES`; None if none were taken."""
        return self._optional(f"samples/{kind}.parquet", schema.SAMPLES[kind])

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Return these columns (None: all) of a table of `schema.TABLES` as Arrow; empty if the trace has no such table."""
        return self._rows(f"{name}.parquet", schema.TABLES[name], columns)

    def _optional(self, name: str, expected: pa.Schema) -> pd.DataFrame | None:
        return self._table(name, expected) if (self.path / name).exists() else None

    def _table(self, name: str, expected: pa.Schema) -> pd.DataFrame:
        frame: pd.DataFrame = self._rows(name, expected).to_pandas()
        return frame

    def _rows(self, name: str, expected: pa.Schema, columns: list[str] | None = None) -> pa.Table:
        path = self.path / name
        if path.exists():
            _footer(path, expected)
        with _damage_in_one_line(path):
            table: pa.Table = (
                pq.read_table(path, columns=columns, schema=expected, partitioning=None, page_checksum_verification=True)
                if path.exists()
                else expected.empty_table().select(columns or expected.names)
            )
        kind = "gpu_samples" if name == "samples/gpu.parquet" else path.stem
        check_rows(table, kind, path, self._number_of_files)
        return table


def _may_end_after(statistics: Mapping[str, Mapping[str, int]], time_ns: int) -> bool:
    """Return False if no event of a row group with these `statistics` ends after `time_ns`."""
    start, duration = (statistics.get(name, {"max": time_ns + 1})["max"] for name in ("start_ns", "duration_ns"))
    return start + duration > time_ns


def _dataset(files: str | list[str], columns: pa.Schema) -> ds.Dataset:
    """Return the Parquet files as a dataset that verifies the checksums of pages that have one."""
    options = ds.ParquetFragmentScanOptions(page_checksum_verification=True, pre_buffer=False)
    return ds.dataset(files, schema=columns, format=ds.ParquetFileFormat(default_fragment_scan_options=options))


@contextmanager
def _damage_in_one_line(path: Path) -> Iterator[None]:
    """Convert Arrow's errors in the `with` block, which name no file, to an IotwinError of one line that names `path`."""
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise IotwinError(f"{path} cannot be read ({str(error).splitlines()[0]}): the trace is damaged; copy it again") from None


def _footer(path: Path, expected: pa.Schema | None = None) -> pq.FileMetaData:
    """Return the Parquet footer of the file `path`. Raises IotwinError if it is damaged or lacks columns of `expected`."""
    try:
        found = path.stat()
        if stat.S_ISREG(found.st_mode) and found.st_size == 0:
            raise IotwinError(f"{path} is empty (zero bytes): the trace is damaged; copy it again or run: iotwin recover")
        if not stat.S_ISREG(found.st_mode):
            raise IotwinError(f"{path} is not a regular file: the trace is damaged; copy it again")
        footer = pq.read_metadata(path)
        if expected is not None:
            check_columns(footer.schema.to_arrow_schema(), expected, path)
        return footer
    except (pa.ArrowException, UnicodeDecodeError):
        raise IotwinError(f"{path} is truncated or not a Parquet file: the trace is damaged; copy it again") from None
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror or str(error).splitlines()[0]}") from None
