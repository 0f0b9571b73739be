"""Check the tables of a trace: columns, nulls, labels, ranges of numbers, file ids.

A trace may be damaged, or written by another program. Each batch is checked when it is read, so other modules can rely on it.
"""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from iotwin.common.errors import IotwinError
from iotwin.trace_store import schema
from iotwin.trace_store.columns import numbers

_MOST = 1 << 62  # the largest time or size, so that the sum of two fits in 64 bits
_REQUIRED = {
    "events": ("start_ns", "duration_ns", "op", "pid", "tid", "fd", "result", "flags"),
    "files": ("file_id", "path", "kind"),
    "processes": ("pid", "comm", "role"),
    "phases": ("phase", "start_ns", "end_ns"),
    "parts": ("name", "start_ns", "duration_ns"),
    "block": ("issue_ns", "op", "sector", "size_bytes", "origin"),
    "gpu": ("start_ns", "duration_ns", "kind"),
    "clock": ("real_ns", "skipped_ns"),
} | dict.fromkeys(("gpu_samples", *(kind for kind in schema.SAMPLES if kind != "gpu")), ("time_ns",))
_LABELS = {
    ("files", "kind"): schema.FILE_KINDS,
    ("processes", "role"): schema.PROCESS_ROLES,
    ("phases", "phase"): schema.PHASE_NAMES,
    ("block", "op"): schema.BLOCK_OPS,
    ("block", "origin"): schema.BLOCK_ORIGINS,
    ("gpu", "kind"): schema.GPU_KINDS,
    ("gpu", "direction"): schema.COPY_DIRECTIONS,
}
# Columns with these endings must not exceed _MOST. Offsets and request sizes may: cp requests nearly 2**63 bytes.
_BOUNDED = ("_ns", "_bytes", "result", "sector")


def check_columns(found: pa.Schema, expected: pa.Schema, path: Path) -> None:
    """Raise IotwinError unless `found`, the columns of the table at `path`, has the columns `expected`, of compatible types."""
    for field in expected:
        if field.name in schema.ADDED and field.name not in found.names:
            continue
        if found.get_all_field_indices(field.name) != [found.get_field_index(field.name)] or field.name not in found.names:
            raise _damaged(path, f"it has no column {field.name}, or several")
        kind = found.field(field.name).type
        if _family(kind) != _family(field.type):
            raise _damaged(path, f"its column {field.name} is of {kind}, not {field.type}")


def _family(kind: pa.DataType) -> str:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    if pa.types.is_integer(kind):
        return "whole number"
    return "number" if pa.types.is_floating(kind) else str(kind)


def check_rows(rows: pa.RecordBatch | pa.Table, table: str, path: Path, files: int | None = None) -> None:
    """Raise IotwinError unless `rows` are valid rows of the table named `table`. `files`: the number of files in the trace."""
    for name in rows.schema.names:
        column = rows.column(name)
        if column.null_count and name in _REQUIRED[table]:
            raise _damaged(path, f"its column {name} has nulls")
        labels = _LABELS.get((table, name))
        if labels is not None:
            unknown = set(pc.unique(column).to_pylist()) - {*labels, None}
            if unknown:
                raise _damaged(path, f"its column {name} has {str(unknown.pop())[:40]!r}")
        elif name == "file_id" and table != "files":
            if files is not None:
                _check_range(column, 0, files - 1, name, path)
        elif name.endswith(_BOUNDED) and pa.types.is_integer(column.type):
            _check_range(column, -_MOST, _MOST, name, path)
    if table == "files" and "file_id" in rows.schema.names and (numbers(rows["file_id"], -1) != np.arange(rows.num_rows)).any():
        raise _damaged(path, "its file_id is not 0, 1, 2, ...")


def _check_range(column: pa.Array | pa.ChunkedArray, least: int, most: int, name: str, path: Path) -> None:
    ends = pc.min_max(column)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if low is not None and not least <= low <= high <= most:
        raise _damaged(path, f"its column {name} has {low if low < least else high}, which is impossible")


def _damaged(path: Path, what: str) -> IotwinError:
    return IotwinError(f"{path} is not a valid table of a trace: {what}; copy the trace again")
