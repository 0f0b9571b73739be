"""Readers of tables: CSV, a record to a line, and Parquet, a record to a row."""

import bz2
import lzma
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmark.readers.access import Opener, Stream, damaged
from benchmark.readers.sample import Sample, check_member
from tracing_tools.trace.errors import IotwinError

_DECOMPRESSORS: dict[str, Callable[[memoryview], bytes]] = {
    ".gz": lambda content: zlib.decompress(content, 31),
    ".bz2": bz2.decompress,
    ".xz": lzma.decompress,
}
_COLUMN = "record"


class Csv:
    """Reads the file whole, as pandas does, and finds the sample's line; the text is delivered, not numbers."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return line `sample` after the header, without its end; IotwinError, naming the file, when it is not whole."""
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


class Parquet:
    """Reads the row group that holds the sample, of the column `record` alone, and keeps it for the next sample of it."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener
        self._kept: tuple[str, int, int, Any] = ("", 0, 0, None)  # a file, the first and the last row, and the column

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return row `sample` of the file; IotwinError, naming it, when it is not whole."""
        kept_path, first, end, column = self._kept
        read_bytes = 0
        if path != kept_path or not first <= sample < end:
            first, end, column, read_bytes = self._group(path, sample)
            self._kept = (path, first, end, column)
        return Sample(memoryview(column[sample - first].as_buffer()), read_bytes)

    def _group(self, path: str, sample: int) -> tuple[int, int, Any, int]:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self._open(path) as file, Stream(file) as stream:
            try:
                table = pq.ParquetFile(stream, pre_buffer=False)
                ends = np.cumsum([table.metadata.row_group(group).num_rows for group in range(table.num_row_groups)])
                check_member(path, sample, int(ends[-1]) if len(ends) else 0)
                group = int(np.searchsorted(ends, sample, side="right"))
                column = table.read_row_group(group, columns=[_COLUMN], use_threads=False).column(_COLUMN).combine_chunks()
            except IotwinError:
                raise
            except (pa.ArrowException, KeyError, OSError) as error:
                raise damaged(path, f"not a whole Parquet file with a column '{_COLUMN}' ({error})") from None
            end = int(ends[group])
            return end - len(column), end, column, stream.read_bytes
