"""What `iotwin.open` returns: a trace whose tables are read as Arrow, pandas or Polars, and queried by SQL."""

import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow.compute import Expression

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.common.html_card import html_card
from iotwin.common.units import counted, format_duration
from iotwin.trace_store import schema
from iotwin.trace_store.figures.sql import query
from iotwin.trace_store.manifest import Manifest
from iotwin.trace_store.reader import Trace as TraceReader

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

_SHOWN = 10  # rows of a table that a notebook shows


class TraceTable:
    """Rows of a trace, which are read when they are first used. Attributes that are not listed here are of `arrow`.

    Arrow's C stream interface is supported, so that `pyarrow.table`, `polars.DataFrame` and DuckDB read the rows directly.
    """

    def __init__(self, columns: pa.Schema, read: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        """`read` returns batches of rows that have the `columns`; each call begins with the first row."""
        self.schema = columns
        self.batches = read

    @cached_property
    def arrow(self) -> pa.Table:
        """All rows as a `pyarrow.Table`; they must fit in memory. To read in bounded memory, iterate over `batches()`."""
        return pa.Table.from_batches(self.batches(), self.schema).unify_dictionaries()

    def to_pandas(self) -> "pd.DataFrame":
        """Return all rows as a pandas frame. Integers that may be null are floats with NaN, labels are categorical."""
        frame: pd.DataFrame = self.arrow.to_pandas()
        return frame

    def to_polars(self) -> "pl.DataFrame":
        """Return all rows as a Polars frame. Raises IotwinError if Polars is not installed."""
        try:
            import polars
        except ImportError:
            raise IotwinError(
                "to_polars needs the package polars, which is not installed; try: pip install 'iotwin[polars]'"
            ) from None
        return polars.DataFrame(self.arrow)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return pa.RecordBatchReader.from_batches(self.schema, self.batches()).__arrow_c_stream__(requested_schema)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # programs that probe for protocols, such as notebooks, must not cause a table to be read
            raise AttributeError(name)
        return getattr(self.arrow, name)

    def __getitem__(self, column: str | int) -> pa.ChunkedArray:
        return self.arrow[column]

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    def __repr__(self) -> str:
        return f"Table({', '.join(f'{field.name}: {field.type}' for field in self.schema)})"

    def _repr_html_(self) -> str:
        head = pa.Table.from_batches([batch for batch, _ in zip(self.batches(), range(1), strict=False)], self.schema).slice(
            0, _SHOWN + 1
        )
        rows = list(zip(*(column.to_pylist() for column in head.columns), strict=True))
        lines = [f"the first {_SHOWN} rows; all: to_pandas(), to_polars(), arrow"] if len(rows) > _SHOWN else []
        return html_card("Table", lines, self.schema.names, rows[:_SHOWN])


class OpenedTrace:
    """A trace on disk. `path` is its directory, `manifest` its facts: machine, command, losses (see docs/trace-format.md)."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the trace at `path`. Raises IotwinError if there is no finished trace."""
        self.reader = TraceReader(Path(path))
        self.path: Path = self.reader.path
        self.manifest: Manifest = self.reader.manifest

    def events(self, columns: Sequence[str] | None = None, where: Expression | None = None) -> TraceTable:
        """Return one row per finished system call, in order of start.

        `columns`: names of columns, None for all. `where`: a pyarrow expression such as ``pc.field("op") == "read"``. Only these
        columns and the parts of the file that may satisfy `where` are read. Raises UsageError for a column that does not exist.
        """
        names = list(schema.EVENTS.names if columns is None else columns)
        for name in names:
            if name not in schema.EVENTS.names:
                raise UsageError(f"events have no column '{name}'{nearest(str(name), schema.EVENTS.names)}")
        if where is not None:
            _check_filter(where)
        return TraceTable(pa.schema([schema.EVENTS.field(name) for name in names]), lambda: self.reader.events(names, where))

    def files(self) -> TraceTable:
        """Return one row per file, in order of `file_id`."""
        return _table_of(self.reader.table("files"))

    def processes(self) -> TraceTable:
        """Return one row per process, in order of start."""
        return _table_of(self.reader.table("processes"))

    def phases(self) -> TraceTable:
        """Return one row per phase that the job logged, in order of start; no row if it logged none."""
        return _table_of(self.reader.table("phases"))

    def sql(self, query_text: str) -> TraceTable:
        """Return the answer to one SELECT by DuckDB over all tables of the trace, like `iotwin stats --sql`.

        Raises UsageError if DuckDB does not accept the query, IotwinError if DuckDB is not installed.
        """
        return _table_of(query(self.reader, query_text))

    def _facts(self) -> list[str]:
        manifest = self.manifest
        duration = format_duration(manifest.end_ns - manifest.start_ns)
        lost = f"{manifest.lost_events:,} LOST" if manifest.lost_events else "none lost"
        return [f"{counted(manifest.events, 'event')} in {duration}, {lost}", f"{manifest.status}, by {manifest.backend}"]

    def __repr__(self) -> str:
        return f"Trace({str(self.path)!r}: {', '.join(self._facts())})"

    def _repr_html_(self) -> str:
        counts = sorted(self.manifest.counts.items(), key=lambda item: -item[1])[:_SHOWN]
        return html_card(str(self.path), [" ".join(self.manifest.target.command), *self._facts()], ("op", "calls"), counts)


def _table_of(table: pa.Table) -> TraceTable:
    return TraceTable(table.schema, lambda: iter(table.to_batches()))


def _check_filter(where: Expression) -> None:
    """Raise UsageError unless `where` is an expression over the columns of events."""
    if not isinstance(where, Expression):
        raise UsageError(
            f'where must be an expression of pyarrow, such as pyarrow.compute.field("op") == "read" (got {where!r:.60})'
        )
    try:
        ds.dataset(schema.EVENTS.empty_table()).to_table(filter=where)
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(f"where: {str(error).splitlines()[0]}; columns: {', '.join(schema.EVENTS.names)}") from None


def reader_of(trace: OpenedTrace | str | os.PathLike[str]) -> TraceReader:
    """Return the reader of an opened trace, or of the trace at a path."""
    return trace.reader if isinstance(trace, OpenedTrace) else TraceReader(Path(trace))
