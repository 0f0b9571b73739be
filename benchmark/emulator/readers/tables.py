"""Read tables: CSV with a record on each line, and Parquet with a record in each row."""

import bz2
import lzma
import zlib
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from iotwin.benchmark.emulator.readers.access import Opener, ReadStream, damaged
from iotwin.benchmark.emulator.readers.sample import Sample, check_member
from iotwin.common.errors import IotwinError, nearest

_DECOMPRESSORS: dict[str, Callable[[memoryview], bytes]] = {
    ".gz": lambda content: zlib.decompress(content, 31),
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_COLUMN = "record"


class Csv:
    """Reads the whole file, as pandas does, and returns the text of the sample's line."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        with self._open(path) as file:
            content = file.read(0, file.size_bytes)
            text = _text(path, content)
            ends = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
            check_member(path, sample, max(0, len(ends) - 1))
            return Sample(memoryview(text)[ends[sample] + 1 : ends[sample + 1]], file.size_bytes)


def _text(path: str, content: memoryview) -> bytes | memoryview:
    for suffix, decompress in _DECOMPRESSORS.items():
        if path.endswith(suffix):
            try:
                return decompress(content)
            except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
                raise damaged(path, error) from None
    return content


class ParquetReader:
    """Reads the row group of a sample, or the whole file, and keeps it for the next sample.

    Only `columns` are read. If none are given, the column `record` is read, or all columns if there is no such column.
    """

    def __init__(self, opener: Opener, columns: Sequence[str] = (), whole_file: bool = False) -> None:
        self._open, self._columns, self._whole_file = opener, list(columns), whole_file
        self._kept_path, self._kept = "", [_RowGroup(0, [])]
        self._footer: Any = None  # metadata of the file at _kept_path, which are read once

    def read(self, path: str, sample: int, samples: int) -> Sample:
        read_bytes = 0
        if path != self._kept_path or not self._kept[0].first <= sample < self._kept[-1].end:
            self._kept, read_bytes = self._load(path, sample)
            self._kept_path = path
        rows = self._kept[bisect_right(self._kept, sample, key=lambda rows: rows.first) - 1]
        return Sample(rows.values(sample), read_bytes)

    def _load(self, path: str, sample: int) -> tuple[list["_RowGroup"], int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._open(path) as file, ReadStream(file) as stream:
            try:
                footer = self._footer if path == self._kept_path else None
                table = pq.ParquetFile(stream, metadata=footer, pre_buffer=False)
                counts = [table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)]
                ends = np.cumsum(counts, dtype=np.int64)
                check_member(path, sample, int(ends[-1]) if counts else 0)
                names = self._names(path, table.schema_arrow.names)
                groups = range(len(counts)) if self._whole_file else [int(np.searchsorted(ends, sample, side="right"))]
                kept = [
                    _RowGroup(
                        int(ends[group]) - counts[group], table.read_row_group(group, columns=names, use_threads=False).columns
                    )
                    for group in groups
                    if counts[group]
                ]
            except IotwinError:
                raise
            except (pa.ArrowException, OSError) as error:
                raise damaged(path, f"not a whole Parquet file ({error})") from None
            self._footer = table.metadata
            return kept, stream.read_bytes

    def _names(self, path: str, found: list[str]) -> list[str]:
        """Return the names of the columns to read from a file with the columns `found`."""
        for name in self._columns:
            if name not in found:
                raise IotwinError(
                    f"{path}: has no column '{name}'{nearest(name, found)}; it has {', '.join(found)}; "
                    "correct dataset.parquet.columns or generate the data set again"
                )
        return self._columns or [_COLUMN] * (_COLUMN in found) or found


class _RowGroup:
    """A row group in memory. `first` and `end` are the indices of its rows in the file."""

    def __init__(self, first: int, columns: Sequence[Any]) -> None:
        self.first = first
        self._columns = [column.combine_chunks() for column in columns]
        self.end = first + (len(self._columns[0]) if columns else 0)

    def values(self, row: int) -> memoryview:
        """Return the bytes of the row at index `row` of the file, column after column."""
        values = [_value(column, row - self.first) for column in self._columns]
        return values[0] if len(values) == 1 else memoryview(b"".join(values))


def _value(column: Any, row: int) -> memoryview:
    """Return the bytes of one value in Arrow's memory, or its text if Arrow does not store it in whole bytes."""
    import pyarrow as pa

    value = column[row]
    if hasattr(value, "as_buffer"):  # binary or text
        return memoryview(value.as_buffer() or b"")
    inner = getattr(value, "values", None)
    numbers = inner if isinstance(inner, pa.Array) else column.slice(row, 1)
    if not pa.types.is_primitive(numbers.type) or numbers.type.bit_width % 8:
        return memoryview(str(value.as_py()).encode())
    width = numbers.type.bit_width // 8
    return memoryview(numbers.buffers()[-1])[numbers.offset * width : (numbers.offset + len(numbers)) * width]
