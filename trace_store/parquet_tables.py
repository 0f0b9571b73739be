"""Read the tables of one trace's directory as Arrow tables and batches, and convert damage to errors of one line."""

import itertools
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow.compute import Expression

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.manifest import Manifest, read_manifest
from iotwin.trace_store.table_checks import check_columns, check_rows

BATCH_ROWS = 1 << 17
_FAR_NS = 1 << 62
SAMPLES = "samples/"  # the name of a table of samples is SAMPLES + a key of schema.SAMPLES


class TraceTables:
    """The tables of a trace in one directory. Opening it reads only the manifest and the Parquet footers."""

    def __init__(self, path: Path) -> None:
        """Open the trace at `path`. Raises IotwinError if it is missing, unfinished, truncated or not a trace."""
        self.path = path
        self.manifest: Manifest = read_manifest(self.path)
        if self.manifest.status == "recording":
            raise IotwinError(f"{self.path} is still recording or was cut off; finish it: iotwin recover {self.path}")
        files = self.path / "files.parquet"
        self.number_of_files = _footer(files, schema.FILES).num_rows if files.exists() else 0
        self._events = self._open_events()

    @property
    def part_rows(self) -> list[int]:
        """The number of events in each part (Parquet file)."""
        return [_footer(Path(part)).num_rows for part in self._events.files]

    def part_begin_ns(self, part: int) -> int:
        """Return the start in ns of the first event of the Parquet file with the index `part`; 0 if it is empty."""
        return next((int(batch["start_ns"][0].as_py()) for batch in self.events(["start_ns"], parts=[part]) if batch.num_rows), 0)

    def in_flight(self, time_ns: int, parts: int | None, columns: Sequence[str], until_ns: int | None = None) -> pa.Table:
        """Return the events of the first `parts` Parquet files, None for all, that end after `time_ns`, in order of start.

        Events that begin after `until_ns` are left out. Row groups whose statistics rule out such an event are not read.
        """
        found = [schema.EVENTS.empty_table().select(list(columns))]
        start = pc.field("start_ns")
        where = start + pc.field("duration_ns") > time_ns
        where = where if until_ns is None else where & (start <= until_ns)
        with _damage_in_one_line(self.path / "events.parquet"):
            for fragment in itertools.islice(self._events.get_fragments(), parts):
                groups = [group.id for group in fragment.row_groups if _may_end_after(group.statistics, time_ns, until_ns)]
                if groups:
                    rows = fragment.subset(row_group_ids=groups)
                    found.append(rows.to_table(schema.EVENTS, columns=list(columns), filter=where))
        table = pa.concat_tables(found).unify_dictionaries()
        check_rows(table, "events", self.path / "events.parquet", self.number_of_files)
        return table

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
        batch_rows: int = BATCH_ROWS,
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
        yield from self._checked(batches)

    def events_by_page(self, columns: list[str], begin_ns: int, end_ns: int, batch_rows: int) -> Iterator[pa.RecordBatch]:
        """Yield the events of all row groups that may have an event that begins from `begin_ns` to `end_ns`, in order of start.

        `events` decodes a row group at once. This decodes a page at a time: a tenth of the memory, for more CPU time.
        """

        def batches() -> Iterator[pa.RecordBatch]:
            for part in self._events.files:
                with pq.ParquetFile(part, read_dictionary=["op"], page_checksum_verification=True) as file:
                    starts = [_starts(file.metadata.row_group(index)) for index in range(file.num_row_groups)]
                    groups = [index for index, (first, last) in enumerate(starts) if first <= end_ns and last >= begin_ns]
                    for batch in file.iter_batches(batch_rows, groups, columns, use_threads=False) if groups else ():
                        yield batch.select(columns).cast(pa.schema([schema.EVENTS.field(name) for name in columns]))

        yield from self._checked(batches())

    def _checked(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield `batches` of events. Raises IotwinError, in one line, if they cannot be read or are invalid."""
        while True:
            # An error within this block means a damaged file. So the `yield`, where the caller may fail, is outside.
            with _damage_in_one_line(self.path / "events.parquet"):
                batch = next(batches, None)
            if batch is None:
                return
            check_rows(batch, "events", self.path / "events.parquet", self.number_of_files)
            yield batch

    def rows(self, name: str, expected: pa.Schema, columns: list[str] | None = None) -> pa.Table | None:
        """Return `columns` (None: all) of the table NAME.parquet, which has the columns `expected`; None if there is no table."""
        path = self.path / f"{name}.parquet"
        if not path.exists():
            return None
        _footer(path, expected)
        # Who reads only some columns of files takes a row's number for the file's id.
        checked = columns if columns is None or name != "files" else list(dict.fromkeys([*columns, "file_id"]))
        with _damage_in_one_line(path):
            table: pa.Table = pq.read_table(
                path, columns=checked, schema=expected, partitioning=None, page_checksum_verification=True
            )
        check_rows(table, "gpu_samples" if name == f"{SAMPLES}gpu" else path.stem, path, self.number_of_files)
        return table if columns is None else table.select(columns)

    def scanned(self, name: str, expected: pa.Schema) -> ds.Dataset | None:
        """Return a table, or the "events", as what DuckDB scans without reading all rows into memory; None if there is none."""
        path = self.path / f"{name}.parquet"
        if name == "events" or not path.exists():
            return self._events if name == "events" else None
        _footer(path, expected)
        return _dataset(str(path), expected)

    def row_groups(self) -> Iterator[tuple[int, int]]:
        """Yield the least start in ns, or the start of the trace if that is unknown, and the rows of each row group of events."""
        for part in self._events.files:
            footer = _footer(Path(part))
            for group in map(footer.row_group, range(footer.num_row_groups)):
                first = _starts(group)[0]
                yield self.manifest.start_ns if first == -_FAR_NS else first, group.num_rows


def _starts(group: pq.RowGroupMetaData) -> tuple[int, int]:
    """Return the least and the greatest start of a row group's events in ns, as far as its statistics have them."""
    known = next(each for each in map(group.column, range(group.num_columns)) if each.path_in_schema == "start_ns").statistics
    return (int(known.min), int(known.max)) if known is not None and known.has_min_max else (-_FAR_NS, _FAR_NS)


def _may_end_after(statistics: Mapping[str, Mapping[str, int]], time_ns: int, until_ns: int | None) -> bool:
    """Return False if no event of a row group with these `statistics` ends after `time_ns` and begins by `until_ns`."""
    start, duration = (statistics.get(name, {"min": -_FAR_NS, "max": _FAR_NS}) for name in ("start_ns", "duration_ns"))
    return start["max"] + duration["max"] > time_ns and (until_ns is None or start["min"] <= until_ns)


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
