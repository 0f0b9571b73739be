"""Read the files of other tools: large text files in blocks, as columns, and other files whole."""

import os
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pv

from iotwin.common.errors import IotwinError
from iotwin.common.processes.parallel import in_threads
from iotwin.common.untrusted_files import open_foreign, open_foreign_unpacked, read_foreign

_BLOCK_BYTES = 1 << 23
_PIECE_BYTES = 1 << 24
_MOST_BYTES = 1 << 33  # largest file that is read whole, in unpacked bytes, since a small archive may hold many
ParseLine = Callable[[str], tuple[Any, ...] | None]  # returns the values in a line, or None if the line is cut off
Convert = Callable[[pa.Table], pa.Table]


@dataclass
class TextColumns:
    """The rows of a block of a text file as an Arrow table, and the number of cut-off lines in the block."""

    table: pa.Table
    torn: int


def column_blocks(path: Path, schema: pa.Schema, parse_line: ParseLine, convert: Convert) -> Iterator[TextColumns]:
    """Parse a text file with one row per line, whose fields are separated by single blanks; yield its blocks in order.

    `schema` names the columns. Lines before the first that starts with a digit are headers. `parse_line` parses lines with too
    few fields, too many fields or invalid numbers. Threads apply `convert` to each block's table. Raises IotwinError if the
    file cannot be read.
    """

    def read(block: bytes) -> TextColumns:
        table, odd = _parse(block, schema)
        rows = [parse_line(line) for line in odd]
        whole = [row for row in rows if row is not None and _fits(row, schema)]
        if whole:
            columns = zip(*whole, strict=True)
            arrays = [pa.array(column, type=_plain(kind)) for column, kind in zip(columns, schema.types, strict=True)]
            more = pa.table(arrays, names=schema.names).cast(schema)
            table = pa.concat_tables([table, more]).unify_dictionaries()
        return TextColumns(convert(table.combine_chunks()), len(rows) - len(whole))

    return in_threads(read, _blocks(path))


def _fits(row: tuple[Any, ...], schema: pa.Schema) -> bool:
    limits = [np.iinfo(kind.to_pandas_dtype()) if pa.types.is_integer(kind) else None for kind in schema.types]
    return all(limit is None or limit.min <= value <= limit.max for value, limit in zip(row, limits, strict=True))


def _blocks(path: Path) -> Iterator[bytes]:
    in_header = True
    try:
        with open_foreign(path) as file:
            while block := file.read(_BLOCK_BYTES):
                cut = block.rfind(b"\n") + 1
                if cut:
                    file.seek(cut - len(block), os.SEEK_CUR)
                    block = block[:cut]
                else:  # the last line, or one that is longer than a block
                    block += file.readline()
                if in_header:
                    block, in_header = _without_header(block)
                if block:
                    yield block
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror or error}") from None


def _without_header(block: bytes) -> tuple[bytes, bool]:
    at = 0
    while at < len(block) and not block[at : at + 1].isdigit():
        end = block.find(b"\n", at) + 1
        at = end or len(block)
    return block[at:], at >= len(block)


def _parse(block: bytes, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    try:
        return _csv(block, schema)
    except pa.ArrowInvalid:
        return _parse_doubtful(block, schema)


def _parse_doubtful(block: bytes, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """Parse a block with invalid numbers: return (rows of the valid lines, the other lines)."""
    text, rejected = _csv(block, pa.schema([(name, pa.string()) for name in schema.names]))
    good = None
    for field_, column in zip(schema, text.columns, strict=True):
        if not pa.types.is_integer(field_.type):
            continue
        # Numbers up to 19 digits may fit. Longer numbers, which are errors printed as unsigned, are rare. `parse_line` parses
        # their lines.
        fits = pc.and_(pc.ascii_is_decimal(column), pc.less(pc.binary_length(column), 20))
        good = fits if good is None else pc.and_(good, fits)
    odd = text.filter(pc.invert(good))
    lines = [" ".join(row) for row in zip(*(column.to_pylist() for column in odd.columns), strict=True)]
    kept = text.filter(good)
    columns = []
    for field_, column in zip(schema, kept.columns, strict=True):
        try:
            columns.append(pc.cast(column, field_.type) if pa.types.is_integer(field_.type) else column.dictionary_encode())
        except pa.ArrowInvalid:  # a number does not fit: let `parse_line` parse all lines
            return schema.empty_table(), block.decode("utf-8", "backslashreplace").splitlines()
    return pa.table(columns, names=schema.names).cast(schema), [*lines, *rejected]


def _csv(block: bytes, schema: pa.Schema) -> tuple[pa.Table, list[str]]:
    """Return (the rows of `block`, the lines with too few or too many fields). Raises pa.ArrowInvalid for invalid numbers."""
    rejected: list[str] = []

    def reject(row: Any) -> str:
        rejected.append(row.text)
        return "skip"

    types = {field_.name: field_.type for field_ in schema}
    text = _utf8(block)  # may be longer than `block`
    table = pv.read_csv(
        pa.BufferReader(text),
        read_options=pv.ReadOptions(column_names=schema.names, block_size=len(text) + 1, use_threads=False),
        parse_options=pv.ParseOptions(delimiter=" ", quote_char=False, invalid_row_handler=reject),
        convert_options=pv.ConvertOptions(column_types=types, strings_can_be_null=False, null_values=[]),
    )
    return table.cast(schema), rejected


def _utf8(block: bytes) -> bytes:
    """Return `block` with \\xNN in place of bytes that are not UTF-8, since Arrow rejects those bytes."""
    if block.isascii():
        return block
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return block.decode("utf-8", "backslashreplace").encode()
    return block


def _plain(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def read_unpacked(path: Path) -> bytes:
    """Return the content of a file, decompressed if its name ends in .gz. Raises IotwinError if unreadable or too large."""
    pieces, left = [], _MOST_BYTES + 1
    try:
        with open_foreign_unpacked(path) as file:
            while left and (piece := file.read(min(left, _PIECE_BYTES))):  # in pieces, as read(n) allocates n bytes
                pieces.append(piece)
                left -= len(piece)
    except (OSError, EOFError, zlib.error) as error:
        raise IotwinError(f"{path} cannot be read ({error}): it is cut off or damaged; copy it again") from None
    if not left:
        raise IotwinError(f"{path} holds more than {_MOST_BYTES >> 30} GiB; split it")
    return b"".join(pieces)


def read_lines(path: Path) -> list[str]:
    """Return the lines of a small file; bytes that are not UTF-8 appear as \\xNN. Raises IotwinError if it cannot be read."""
    return read_foreign(path, _MOST_BYTES).decode("utf-8", "backslashreplace").splitlines()
