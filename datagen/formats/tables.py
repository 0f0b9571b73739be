"""Write Parquet files of records and labels, or of the columns that the layout specifies."""

from collections.abc import Iterator

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.datagen.content import as_numbers
from iotwin.datagen.data_set_files import Piece
from iotwin.datagen.formats.file_to_write import BLOCK_BYTES, File
from iotwin.datagen.formats.parquet import LARGEST_PAGE_BYTES, RECORD_COLUMNS, Column, TableWriter


def write_parquet(file: File) -> list[Piece]:
    """Write a table of the columns `record` and `label`, or of the layout's columns.

    A row group has about half a mebibyte, or one larger record, unless the layout specifies its rows. Raises IotwinError if a
    row group would have 2 GiB or more.
    """
    layout = file.layout
    each = layout.row_group_rows or max(1, BLOCK_BYTES // file.record_bytes)
    if min(each, file.records) * file.record_bytes > LARGEST_PAGE_BYTES - 4 * each:
        raise IotwinError(
            f"{file.name}: a parquet file cannot hold a record or a row group of 2 GiB or more; ask for smaller ones or for npy"
        )
    columns = [Column.of(*column) for column in layout.columns] or RECORD_COLUMNS
    with file.open(file.name) as sink:
        table = TableWriter(sink.write, layout.compression_level if layout.compression == "gzip" else None, columns)
        for first in range(0, file.records, each):
            rows = min(each, file.records - first)
            records = [(rows * (4 + file.record_bytes), _sized_records(file, rows)), (8 * rows, [bytes(8 * rows)])]
            table.add(rows, _column_pages(file, rows) if layout.columns else records)
        table.finish()
        return [sink.piece()]


def _sized_records(file: File, rows: int) -> Iterator[bytes | memoryview]:
    count = np.array([file.record_bytes], "<u4").view(np.uint8)
    if file.record_bytes > BLOCK_BYTES:
        for _ in range(rows):
            yield count.data
            yield from file.one_record()
        return
    for batch in file.batches(rows):
        yield np.concatenate([np.broadcast_to(count, (len(batch), count.size)), batch], axis=1).reshape(-1).data


def _column_pages(file: File, rows: int) -> Iterator[tuple[int, Iterator[bytes | memoryview]]]:
    for _, dtype, elements in file.layout.columns:
        element = np.dtype(dtype)
        page_bytes, step = rows * elements * element.itemsize, BLOCK_BYTES // element.itemsize * element.itemsize
        sizes = (min(step, page_bytes - start) for start in range(0, page_bytes, step))
        yield page_bytes, (as_numbers(file.content.take(size), element).view(np.uint8).data for size in sizes)
