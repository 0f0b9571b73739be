"""Parquet tables of one binary and one integer column, written front to back, however long a record is, without holding it.

Source of the format: apache/parquet-format, parquet.thrift, in Thrift's compact protocol. Both columns are required, so there
are no levels, and plainly encoded. Every batch of records is a row group of one page a column.
"""

import zlib
from collections.abc import Callable, Iterable
from typing import Any

from datagen.varint import varint

_MAGIC = b"PAR1"
_TYPES = {"i32": 5, "i64": 6, "binary": 8, "list": 9, "struct": 12}  # of the compact protocol
_INT64, _BYTE_ARRAY = 2, 6
_PLAIN, _RLE = 0, 3
_UNCOMPRESSED, _GZIP = 0, 2
LARGEST_RECORD_BYTES = (1 << 31) - 5  # a page of one and its byte count

Blocks = Iterable[bytes | memoryview]
# A type's name, and a number, bytes, a list's type and values, or a struct: its fields by number, or their bytes.
Field = tuple[str, Any]


class TableWriter:
    """Writes the columns `record` (binary) and `label` (int64, zeros) through `write`; `finish` ends the file."""

    def __init__(self, write: Callable[[bytes | memoryview], None], gzip_level: int | None) -> None:
        self._sink, self._gzip_level = write, gzip_level
        self._written_bytes = self._rows = 0
        self._groups: list[bytes] = []
        self._write(_MAGIC)

    def add(self, rows: int, page_bytes: int, blocks: Blocks) -> None:
        """Append a row group of `rows` records: `blocks`, `page_bytes` in all, hold each one's byte count (<u4) and bytes."""
        columns = [
            self._column(b"record", _BYTE_ARRAY, rows, page_bytes, blocks),
            self._column(b"label", _INT64, rows, 8 * rows, [bytes(8 * rows)]),
        ]
        total_bytes = sum(column[3][1][6][1] for column in columns)
        self._groups.append(_struct({1: ("list", ("struct", columns)), 2: ("i64", total_bytes), 3: ("i64", rows)}))
        self._rows += rows

    def finish(self) -> None:
        """Write the footer."""
        schema: list[dict[int, Field]] = [{4: ("binary", b"schema"), 5: ("i32", 2)}]
        schema += [
            {1: ("i32", kind), 3: ("i32", 0), 4: ("binary", name)}
            for kind, name in ((_BYTE_ARRAY, b"record"), (_INT64, b"label"))
        ]
        footer = _struct({
            1: ("i32", 1), 2: ("list", ("struct", schema)), 3: ("i64", self._rows), 4: ("list", ("struct", self._groups)),
            6: ("binary", b"iotwin"),
        })  # fmt: skip
        self._write(footer + len(footer).to_bytes(4, "little") + _MAGIC)

    def _write(self, block: bytes | memoryview) -> None:
        self._sink(block)
        self._written_bytes += len(block)

    def _column(self, name: bytes, kind: int, rows: int, page_bytes: int, blocks: Blocks) -> dict[int, Field]:
        """Write a column's page and return its ColumnChunk."""
        stored_bytes, codec = page_bytes, _UNCOMPRESSED
        if self._gzip_level is not None:
            blocks = _gzipped(blocks, self._gzip_level)
            stored_bytes, codec = sum(map(len, blocks)), _GZIP
        header = _page_header(rows, page_bytes, stored_bytes)
        start = self._written_bytes
        self._write(header)
        for block in blocks:
            self._write(block)
        metadata = {
            1: ("i32", kind), 2: ("list", ("i32", [_PLAIN])), 3: ("list", ("binary", [name])), 4: ("i32", codec),
            5: ("i64", rows), 6: ("i64", len(header) + page_bytes), 7: ("i64", len(header) + stored_bytes), 9: ("i64", start),
        }  # fmt: skip
        return {2: ("i64", start), 3: ("struct", metadata)}


def _gzipped(blocks: Blocks, level: int) -> list[bytes]:
    """Return the blocks compressed: their size must be known before they are written."""
    compressor = zlib.compressobj(level, wbits=31)
    return [*(compressor.compress(block) for block in blocks), compressor.flush()]


def _page_header(rows: int, page_bytes: int, stored_bytes: int) -> bytes:
    page: dict[int, Field] = {1: ("i32", rows), 2: ("i32", _PLAIN), 3: ("i32", _RLE), 4: ("i32", _RLE)}
    return _struct({1: ("i32", 0), 2: ("i32", page_bytes), 3: ("i32", stored_bytes), 5: ("struct", page)})


def _struct(fields: dict[int, Field]) -> bytes:
    content, last = b"", 0
    for number, (kind, value) in fields.items():
        content += bytes([number - last << 4 | _TYPES[kind]]) + _value(kind, value)
        last = number
    return content + b"\0"


def _value(kind: str, value: Any) -> bytes:
    match kind:
        case "i32" | "i64":
            return varint(value << 1)  # zigzag; nothing here is negative
        case "binary":
            return varint(len(value)) + bytes(value)
        case "list":
            element, values = value
            head = bytes([0xF0 | _TYPES[element]]) + varint(len(values))
            return head + b"".join(_value(element, each) for each in values)
    return value if isinstance(value, bytes) else _struct(value)
