"""Run SQL over the tables of a trace by DuckDB, without access to files or the network."""

import datetime
import decimal
from contextlib import suppress
from typing import Any

import pyarrow as pa

from iotwin.common.errors import IotwinError, UsageError
from iotwin.trace_store.reader import Trace


def query(trace: Trace, text: str) -> pa.Table:
    """Return the rows of one SELECT over the trace's tables.

    The tables are events, files, processes, phases and, if the trace has them, parts, block, gpu and samples_KIND. Raises
    UsageError unless `text` is one SELECT that DuckDB accepts, IotwinError if DuckDB is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise IotwinError("SQL needs the Python package duckdb, which is not installed; try: pip install 'iotwin[sql]'") from None
    # Arrow reads the tables, so DuckDB needs no access to files.
    connection = duckdb.connect(":memory:", config={"enable_external_access": "false", "python_enable_replacements": "false"})
    try:
        for name, table in trace.tables().items():
            connection.register(name if name != "events" else "recorded", table)
        # OFFSET is a keyword of SQL, so a column of that name would need quotes.
        connection.execute('CREATE VIEW events AS SELECT *, "offset" AS offset_bytes FROM recorded')
        connection.execute("SET lock_configuration = true")
        statements = connection.extract_statements(text)
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("SQL takes exactly one SELECT; write for example: select op, count(*) from events group by op")
        return _with_integers(connection.sql(statements[0]).to_arrow_table())
    except duckdb.Error as error:
        message = " ".join(str(error).split())
        raise UsageError(f"SQL: {message}; tables: {', '.join(trace.tables())}") from None
    finally:
        connection.close()


def _with_integers(table: pa.Table) -> pa.Table:
    """Return `table` with 64-bit integers in place of DuckDB's 128-bit ones, which Arrow has as decimals, if the values fit."""
    for index, field in enumerate(table.schema):
        if pa.types.is_decimal(field.type) and field.type.scale == 0:
            with suppress(pa.ArrowInvalid):
                table = table.set_column(index, field.name, table.column(index).cast(pa.int64()))
    return table


def plain_rows(table: pa.Table) -> list[list[Any]]:
    """Return the rows of `table` as values that JSON has."""
    columns = [[_plain(value) for value in column.to_pylist()] for column in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if abs(value) != float("inf") and value == value else None
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value.isoformat() if isinstance(value, datetime.date | datetime.time) else str(value)
