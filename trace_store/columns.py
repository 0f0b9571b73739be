"""Make Arrow columns from numpy arrays without a copy, and without ``pa.array``, which imports 40 MB of pandas."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_EXACT = 1 << 53  # floats hold all whole numbers up to this one exactly


def column(values: NDArray[np.generic], kind: pa.DataType, missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """Return `values`, shape (n,), as a column of type `kind`, null where `missing`. Raises TypeError if bit widths differ."""
    if values.itemsize * 8 != kind.bit_width:
        raise TypeError(f"{values.dtype} is no {kind}")
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(values), [validity, pa.py_buffer(np.ascontiguousarray(values))])


def numbers(values: pa.Array | pa.ChunkedArray, missing: int = 0) -> NDArray[Any]:
    """Return the numbers of a column, shape (n,), with `missing` in place of null. (Arrow's `to_numpy` would import pandas.)"""
    array = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
    kind = _numpy_type(array.type)
    if not len(array):
        return np.empty(0, kind)
    found: NDArray[Any] = np.frombuffer(array.buffers()[1], kind, len(array), array.offset * kind.itemsize)
    if not array.null_count:
        return found
    bits = np.unpackbits(np.frombuffer(array.buffers()[0], np.uint8), bitorder="little")
    return np.where(bits[array.offset : array.offset + len(array)], found, kind.type(missing))


def integers(values: pa.Array | pa.ChunkedArray, missing: int = 0) -> NDArray[np.int64]:
    """Return the numbers of a column as int64, shape (n,), with `missing` in place of null."""
    found: NDArray[np.int64] = numbers(values, missing).astype(np.int64, copy=False)
    return found


def add_at(sums: NDArray[Any], row: NDArray[np.int64], values: NDArray[np.int64] | None = None) -> None:
    """Add values[i] to sums[row[i]] for each i; without `values`, add 1. No value may be negative.

    Sums of whole numbers in floats are exact up to 2**53: 9 PB, or 104 days in ns.
    """
    if len(sums) > len(row):  # the other way makes arrays as long as `sums`, which would take longer than single additions
        np.add.at(sums, row, sums.dtype.type(1) if values is None else values.astype(sums.dtype, copy=False))
    elif values is None:
        sums += np.bincount(row, minlength=len(sums))
    elif len(row) * int(values.max(initial=0)) < _EXACT:
        sums += np.bincount(row, values, len(sums)).astype(sums.dtype, copy=False)
    else:
        np.add.at(sums, row, values)


def plain_labels(expected: pa.Schema) -> pa.Schema:
    """Return the schema `expected` with strings instead of dictionaries, so that tables with other dictionaries can be joined."""
    return pa.schema([(field.name, pa.string() if pa.types.is_dictionary(field.type) else field.type) for field in expected])


def texts(values: Sequence[str | None]) -> pa.StringArray:
    """Return a string column with `values`, and null in place of None."""
    content = [b"" if value is None else value.encode() for value in values]
    ends = np.cumsum([0, *map(len, content)]).astype(np.int32)
    present = np.array([value is not None for value in values], np.bool_)
    validity = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(ends), pa.py_buffer(b"".join(content)), validity)


def labels(
    codes: NDArray[np.int16] | NDArray[np.int32], names: Sequence[str], missing: NDArray[np.bool_] | None = None
) -> pa.DictionaryArray:
    """Return a dictionary column with `names[code]` for each of `codes`, shape (n,); null where `missing` is True."""
    return pa.DictionaryArray.from_arrays(column(codes, pa.from_numpy_dtype(codes.dtype), missing), texts(names))


def rows_table(rows: Sequence[Mapping[str, Any]], expected: pa.Schema) -> pa.Table:
    """Return a few `rows` as a table of the schema `expected`, with null where a row has None or lacks the column."""
    arrays = [_values_column([row.get(field.name) for row in rows], field.type) for field in expected]
    return pa.Table.from_arrays(arrays, schema=expected)


def _values_column(values: list[Any], kind: pa.DataType) -> pa.Array:
    if pa.types.is_string(kind):
        return texts(values)
    missing = np.array([value is None for value in values], np.bool_)
    if pa.types.is_dictionary(kind):
        names = list(dict.fromkeys(value for value in values if value is not None))
        number = {name: code for code, name in enumerate(names)} | {None: 0}
        return labels(np.array([number[value] for value in values], np.int16), names, missing)
    filled = np.array([0 if value is None else value for value in values], _numpy_type(kind))
    return column(filled, kind, missing)


def _numpy_type(kind: pa.DataType) -> np.dtype[Any]:
    """Return the numpy type of a numeric column. Arrow's to_pandas_dtype imports pandas in some versions."""
    return np.dtype({"float": "float32", "double": "float64"}.get(str(kind), str(kind)))
