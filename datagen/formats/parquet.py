"""Write Parquet tables of plain columns from front to back, without holding a record in memory.

Source of the format: apache/parquet-format, parquet.thrift, in Thrift's compact protocol. All columns are required, so they have
no definition levels, and their encoding is PLAIN. Every row group has one page for each column.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from iotwin.datagen.formats.varint import varint

_MAGIC = b"PAR1"
_TYPES = {"i32": 5, "i64": 6, "binary": 8, "list": 9, "struct": 12}  # numbers of types in the compact protocol
_NUMBERS = {"int32": 1, "int64": 2, "float32": 4, "float64": 5}  # Parquet's physical types of numbers
_BYTE_ARRAY, _FIXED_BYTES = 6, 7
_PLAIN, _RLE = 0, 3
_UNCOMPRESSED, _GZIP = 0, 2
LARGEST_PAGE_BYTES = (1 << 31) - 1

Blocks = Iterable[bytes | memoryview]
# A field of Parquet's metadata (Thrift compact protocol): (name of its type, value). The value of a list is (type of its items,
# items). The value of a struct is a dict of its fields by number, or its bytes if it is encoded already.
Field = tuple[str, Any]


class Column(NamedTuple):
    """A column of a table: its name, its Parquet type, and the size of a value if the type does not determine it."""

    name: str
    kind: int
    fixed_bytes: int = 0

    @classmethod
    def of(cls, name: str, dtype: str, elements: int) -> "Column":
        """Return a column of numbers, or of byte strings with `elements` numbers of type `dtype` in each."""
        if elements == 1 and dtype in _NUMBERS:
            return cls(name, _NUMBERS[dtype])
        return cls(name, _FIXED_BYTES, elements * np.dtype(dtype).itemsize)


RECORD_COLUMNS = (Column("record", _BYTE_ARRAY), Column("label", _NUMBERS["int64"]))


class TableWriter:
    """Writes a table with `columns` by calling `write`. `gzip_level`: level at which to compress pages, None: not at all."""

    def __init__(
        self, write: Callable[[bytes | memoryview], None], gzip_level: int | None, columns: Sequence[Column] = RECORD_COLUMNS
    ) -> None:
        self._sink, self._gzip_level, self._columns = write, gzip_level, columns
        self._written_bytes = self._rows = 0
        self._groups: list[bytes] = []
        self._write(_MAGIC)

    def add(self, rows: int, pages: Iterable[tuple[int, Blocks]]) -> None:
        """Append a row group of `rows` records. `pages` has (size in bytes, blocks of bytes) for each column.

        The blocks contain the values one after the other. A value of variable length begins with its size (<u4).
        """
        columns = [self._page(column, rows, *page) for column, page in zip(self._columns, pages, strict=True)]
        total_bytes = sum(column[3][1][6][1] for column in columns)
        self._groups.append(_struct({1: ("list", ("struct", columns)), 2: ("i64", total_bytes), 3: ("i64", rows)}))
        self._rows += rows

    def finish(self) -> None:
        """Write the footer, after which the table is complete."""
        schema: list[dict[int, Field]] = [{4: ("binary", b"schema"), 5: ("i32", len(self._columns))}]
        for name, kind, fixed_bytes in self._columns:
            length: dict[int, Field] = {2: ("i32", fixed_bytes)} if fixed_bytes else {}
            schema.append({1: ("i32", kind), **length, 3: ("i32", 0), 4: ("binary", name.encode())})
        footer = _struct(
            {
                1: ("i32", 1),
                2: ("list", ("struct", schema)),
                3: ("i64", self._rows),
                4: ("list", ("struct", self._groups)),
                6: ("binary", b"iotwin"),
            }
        )
        self._write(footer + len(footer).to_bytes(4, "little") + _MAGIC)

    def _write(self, block: bytes | memoryview) -> None:
        self._sink(block)
        self._written_bytes += len(block)

    def _page(self, column: Column, rows: int, page_bytes: int, blocks: Blocks) -> dict[int, Field]:
        """Write a page of `column` and return its ColumnChunk of parquet.thrift, as fields by number."""
        stored_bytes, codec = page_bytes, _UNCOMPRESSED
        if self._gzip_level is not None:
            # The compressed blocks are held in memory, since their size must be known before they are written.
            compressor = zlib.compressobj(self._gzip_level, wbits=31)
            blocks = [*(compressor.compress(block) for block in blocks), compressor.flush()]
            stored_bytes, codec = sum(map(len, blocks)), _GZIP
        page: dict[int, Field] = {1: ("i32", rows), 2: ("i32", _PLAIN), 3: ("i32", _RLE), 4: ("i32", _RLE)}
        header = _struct({1: ("i32", 0), 2: ("i32", page_bytes), 3: ("i32", stored_bytes), 5: ("struct", page)})
        start = self._written_bytes
        self._write(header)
        for block in blocks:
            self._write(block)
        metadata = {
            1: ("i32", column.kind),
            2: ("list", ("i32", [_PLAIN])),
            3: ("list", ("binary", [column.name.encode()])),
            4: ("i32", codec),
            5: ("i64", rows),
            6: ("i64", len(header) + page_bytes),
            7: ("i64", len(header) + stored_bytes),
            9: ("i64", start),
        }
        return {2: ("i64", start), 3: ("struct", metadata)}


def _struct(fields: dict[int, Field]) -> bytes:
    content, last = b"", 0
    for number, (kind, value) in fields.items():
        content += bytes([number - last << 4 | _TYPES[kind]]) + _value(kind, value)
        last = number
    return content + b"\0"


def _value(kind: str, value: Any) -> bytes:
    match kind:
        case "i32" | "i64":
            return varint(value << 1)  # zigzag encoding of a number that is not negative
        case "binary":
            return varint(len(value)) + bytes(value)
        case "list":
            element, values = value
            head = bytes([0xF0 | _TYPES[element]]) + varint(len(values))
            return head + b"".join(_value(element, each) for each in values)
    return value if isinstance(value, bytes) else _struct(value)
