"""Read a finished trace, or a set of hosts' traces, as Arrow batches or pandas frames."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow.compute import Expression

from iotwin.common.processes.memory_limit import memory_limit, rows_of_batch
from iotwin.trace_store import schema
from iotwin.trace_store.hosts.set_file import is_set
from iotwin.trace_store.hosts.set_tables import SetTables, open_set
from iotwin.trace_store.manifest import MANIFEST_NAME, SET_NAME, Manifest
from iotwin.trace_store.parquet_tables import SAMPLES, TraceTables

_FILE_BYTES, _HOST_BYTES = 200, 3 << 20  # memory of a fold for each file, and for each host of a set
EVENT_BYTES = 450  # most memory for each event in work that holds all events at once, such as a fit


class Trace:
    """A finished trace on disk, or the traces of a set's hosts as one. Opening reads only manifests and Parquet footers.

    Methods return tables as pandas frames with the columns of `schema`; integers that may be null are floats with NaN.
    """

    def __init__(self, path: Path | str, inferred: pd.DataFrame | None = None) -> None:
        """Open the trace or set at `path`. Raises IotwinError if it is missing, unfinished, truncated or not a trace.

        `inferred`: rows of schema.PHASES to use in place of the trace's phases, if the job logged none.
        """
        self.path = Path(path)
        self.inferred = inferred
        self._tables: TraceTables | SetTables = open_set(self.path) if is_set(self.path) else TraceTables(self.path)
        self.manifest: Manifest = self._tables.manifest

    def __reduce__(self) -> tuple[Any, ...]:
        """Let another process open the same trace."""
        return Trace, (self.path, self.inferred)

    @property
    def document(self) -> Path:
        """The file that describes the trace or set. The file's content changes if another trace or set replaces this one."""
        return self.path / (SET_NAME if is_set(self.path) else MANIFEST_NAME)

    @property
    def fits_in_memory(self) -> bool:
        """True if work that holds all events at once, such as a fit, stays within the memory limit."""
        return self.manifest.events * EVENT_BYTES <= memory_limit()

    @property
    def held_bytes(self) -> int:
        """The most bytes of a fold's memory that depend on the numbers of files and hosts."""
        return self._tables.number_of_files * _FILE_BYTES + len(self.manifest.hosts) * _HOST_BYTES

    @property
    def part_rows(self) -> list[int]:
        """The number of events in each part: a Parquet file of a trace, or a stretch of time of a set."""
        return self._tables.part_rows

    def part_begin_ns(self, part: int) -> int:
        """Return the time in ns at which the part with the index `part` begins; 0 if it is empty."""
        return self._tables.part_begin_ns(part)

    def in_flight(self, time_ns: int, parts: int, columns: Sequence[str]) -> pa.Table:
        """Return the events of the first `parts` parts that end after `time_ns`, in order of start.

        Row groups whose statistics rule out such an event are not read.
        """
        return self._tables.in_flight(time_ns, parts, columns)

    def events(
        self,
        columns: Sequence[str] | None = None,
        where: Expression | None = None,
        batch_rows: int | None = None,
        parts: Sequence[int] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the events in order of start, in batches of at most `batch_rows` rows; None: as the memory limit permits.

        `where`: a pyarrow expression that selects events, such as ``pc.field("op") == "read"``. `parts`: consecutive indices of
        the parts to read, None for all.
        """
        return self._tables.events(columns, where, batch_rows or rows_of_batch(), parts)

    def events_frame(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> pd.DataFrame:
        """Return the events as one frame in order of start; the column `op` is categorical. The events must fit in memory."""
        names = schema.EVENTS.names if columns is None else list(columns)
        expected = pa.schema([schema.EVENTS.field(name) for name in names])
        frame: pd.DataFrame = pa.Table.from_batches(self.events(names, where), expected).unify_dictionaries().to_pandas()
        pa.default_memory_pool().release_unused()  # a second copy of all events, which Arrow would keep for later
        return frame

    def files(self) -> pd.DataFrame:
        """Return the files table: one row per file, in order of file_id. Ids count from 0."""
        return self._frame("files", schema.FILES)

    def processes(self) -> pd.DataFrame:
        """Return the processes table, one row per process, in order of start."""
        return self._frame("processes", schema.PROCESSES)

    def phases(self) -> pd.DataFrame:
        """Return the phases in order of start: `inferred` if set, else the logged phases. The frame may be empty."""
        return self.inferred if self.inferred is not None else self._frame("phases", schema.PHASES)

    def step_parts(self) -> pd.DataFrame | None:
        """Return the parts of steps and checkpoints in order of start; None if the job logged none."""
        return self._optional("parts", schema.PARTS)

    def block(self) -> pd.DataFrame | None:
        """Return the block requests in order of issue; None if they were not traced."""
        return self._optional("block", schema.BLOCK)

    def gpu(self) -> pd.DataFrame | None:
        """Return the accelerator activity in order of start; None if none was traced."""
        return self._optional("gpu", schema.GPU)

    def samples(self, kind: str) -> pd.DataFrame | None:
        """Return the samples of `kind`, a key of `schema.SAMPLES`; None if none were taken."""
        return self._optional(f"{SAMPLES}{kind}", schema.SAMPLES[kind])

    def tables(self) -> dict[str, Any]:
        """Return what DuckDB scans for each table of the trace, by name; samples are called samples_KIND."""
        samples = {f"{SAMPLES}{kind}": columns for kind, columns in schema.SAMPLES.items()}
        kinds = {"events": schema.EVENTS} | schema.TABLES | samples
        found = {name.replace("/", "_"): self._tables.scanned(name, columns) for name, columns in kinds.items()}
        return {name: table for name, table in found.items() if table is not None}

    def table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        """Return these columns (None: all) of a table of `schema.TABLES` as Arrow; empty if the trace has no such table."""
        expected = schema.TABLES[name]
        found = self._tables.rows(name, expected, columns)
        return expected.empty_table().select(columns or expected.names) if found is None else found

    def paths(self, file_ids: NDArray[np.int64]) -> list[str]:
        """Return the paths of files. Only these become Python objects, which takes far less memory than `files`."""
        paths: list[str] = self.table("files", ["path"])["path"].take(pa.array(file_ids)).to_pylist()
        return paths

    def _optional(self, name: str, expected: pa.Schema) -> pd.DataFrame | None:
        found = self._tables.rows(name, expected)
        frame: pd.DataFrame | None = None if found is None else found.to_pandas()
        return frame

    def _frame(self, name: str, expected: pa.Schema) -> pd.DataFrame:
        found = self._optional(name, expected)
        frame: pd.DataFrame = expected.empty_table().to_pandas() if found is None else found
        return frame
