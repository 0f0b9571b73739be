"""Writers of the file formats the emulator reads. Files stream through blocks, so memory does not grow with their size."""

import bz2
import lzma
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from common.beneath import open_beneath
from common.errors import IotwinError
from datagen import jpeg
from datagen.content import Content, as_numbers
from datagen.files import PARTIAL_SUFFIX, Piece, PieceWriter, WriteStream, read_open_piece
from datagen.layouts import FormatLayout, npy_header
from datagen.parquet import LARGEST_PAGE_BYTES, RECORD_COLUMNS, Column, TableWriter
from datagen.tfrecord import FRAME_BYTES, HEAD_BYTES, TAIL_BYTES, fill_frames, framed
from datagen.varint import varint

if TYPE_CHECKING:
    import h5py

# Much larger arrays go back to the system whenever they are freed, and cost its page faults again.
_BLOCK_BYTES = 1 << 19
_SHORT_RECORD_BYTES = 1 << 16  # up to here many records are framed at a time
_BLOCK_COLUMNS = 1 << 16

Sink = Callable[[bytes | memoryview], None]


@dataclass(frozen=True)
class File:
    """One file to write: its place, its records and their bytes."""

    layout: FormatLayout
    directory: Path
    name: str
    indices: list[str]
    shape: tuple[int, ...]  # of one record
    content: Content
    written: Callable[[int], None]

    @property
    def records(self) -> int:
        """Number of records."""
        return self.layout.samples_per_file

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of a record's elements."""
        return np.dtype(self.layout.dtype)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record."""
        return math.prod(self.shape) * self.dtype.itemsize

    def open(self, name: str) -> PieceWriter:
        """Return the writer of the file `name`, this one's own or an index of it."""
        return PieceWriter(self.directory, name, self.written)

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        """Return the next bytes of content, valid as numbers of dtype."""
        return as_numbers(self.content.take(size_bytes), self.dtype).view(np.uint8)

    def blocks(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of all records, about half a mebibyte at a time."""
        left = self.records * self.record_bytes
        step = _BLOCK_BYTES // self.dtype.itemsize * self.dtype.itemsize
        while left:
            yield self.take(min(left, step))
            left -= min(left, step)

    def one_record(self) -> Iterator[memoryview]:
        """Yield the bytes of the next record, about half a mebibyte at a time."""
        for start in range(0, self.record_bytes, _BLOCK_BYTES):
            yield self.take(min(_BLOCK_BYTES, self.record_bytes - start)).data

    def batches(self, records: int) -> Iterator[NDArray[np.uint8]]:
        """Yield the next records as (count, record bytes), about half a mebibyte or one record at a time."""
        each = max(1, _BLOCK_BYTES // self.record_bytes)
        for first in range(0, records, each):
            count = min(each, records - first)
            yield self.take(count * self.record_bytes).reshape(count, self.record_bytes)


def write_files(
    layout: FormatLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the files of unit `unit` under temporary names and return their pieces, each file's index after it."""
    sizes = layout.record_sizes(samples, seed)
    pieces: list[Piece] = []
    for index in layout.unit_files(samples, unit):
        content = Content(seed, index, layout.entropy, layout.dedup)
        shape = layout.record_shape(int(sizes[index]))
        names = layout.file_name(samples, index), layout.index_names(samples, index)
        pieces += _WRITERS[layout.format](File(layout, directory, *names, shape, content, written))
    return pieces


def _stored(file: File) -> tuple[int, ...]:
    """Return the shape of a file's one array: DLIO keeps samples on the last axis."""
    return (*file.shape, file.records)


def _write_bin(file: File) -> list[Piece]:
    with file.open(file.name) as sink:
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def _write_npy(file: File) -> list[Piece]:
    with file.open(file.name) as sink:
        sink.write(npy_header(file.dtype.str, _stored(file)))
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def _write_npz(file: File) -> list[Piece]:
    method = zipfile.ZIP_DEFLATED if file.layout.compression == "zip" else zipfile.ZIP_STORED
    labels = np.zeros(file.records, np.int64)
    with file.open(file.name) as sink:
        with zipfile.ZipFile(WriteStream(sink), "w", method, compresslevel=file.layout.compression_level) as archive:
            for name, header, blocks in (
                ("x.npy", npy_header(file.dtype.str, _stored(file)), file.blocks()),
                ("y.npy", npy_header("<i8", labels.shape), iter([labels.view(np.uint8)])),
            ):
                member = zipfile.ZipInfo(name)  # dated 1980, so that the same request gives the same bytes
                member.compress_type = method
                with archive.open(member, "w", force_zip64=True) as stream:
                    stream.write(header)
                    for block in blocks:
                        stream.write(block.data)
        return [sink.piece()]


def _write_hdf5(file: File) -> list[Piece]:
    try:
        import h5py
    except ImportError:
        raise IotwinError("writing hdf5 needs h5py; install it with: pip install h5py") from None
    layout = file.layout
    if layout.compression == "none" and not layout.chunk_dims and not layout.max_shape and layout.datasets == 1:
        before, after = _hdf5_frame((file.records, *_dataset_shape(file)), file.dtype.str)
        with file.open(file.name) as sink:
            sink.write(before)
            for block in file.blocks():
                sink.write(block.data)
            sink.write(after)
            return [sink.piece()]
    flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC
    with os.fdopen(open_beneath(file.directory, file.name + PARTIAL_SUFFIX, flags, make_folders=True), "r+b") as opened:
        path = Path(f"/proc/self/fd/{opened.fileno()}")  # for a library that takes names only: this file and no other
        with h5py.File(path, "w") as target:
            target.create_dataset("labels", data=np.zeros(file.records, np.int64))
            for index in range(layout.datasets):
                _fill_dataset(file, target, f"records_{index}")
        os.fsync(opened.fileno())
        return [read_open_piece(opened, file.name, 0, path.stat().st_size, file.written)]


def _dataset_shape(file: File) -> tuple[int, ...]:
    """Return the shape of a record in each of the file's datasets; a first dimension of 1 is left out, as DLIO does."""
    layout = file.layout
    lines, *others = file.shape
    lines //= layout.datasets
    dropped = lines == 1 and others and layout.record_dims and not (layout.chunk_dims or layout.max_shape)
    return tuple(others) if dropped else (lines, *others)


@lru_cache(maxsize=16)
def _hdf5_frame(shape: tuple[int, ...], dtype: str) -> tuple[bytes, bytes]:
    """Return what is before and after the records in the file that the library lays out for them, without writing them."""
    import h5py

    with TemporaryDirectory(prefix="iotwin-") as directory:
        path = Path(directory) / "frame"
        with h5py.File(path, "w") as target:
            target.create_dataset("labels", data=np.zeros(shape[0], np.int64))
            settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # so the file stays sparse
            records = target.create_dataset("records_0", shape, dtype, dcpl=settings)
            offset, size_bytes = records.id.get_offset(), records.id.get_storage_size()
        with path.open("rb") as content:
            before = content.read(offset)
            content.seek(offset + size_bytes)
            return before, content.read()


def _fill_dataset(file: File, target: "h5py.File", name: str) -> None:
    """Write the records, or their part where a record has several datasets, a block of short ones or of a long one at a time."""
    layout = file.layout
    shape = _dataset_shape(file)
    settings: dict[str, object] = {} if layout.compression == "none" else {"compression": layout.compression}
    if layout.compression == "gzip":
        settings["compression_opts"] = layout.compression_level
    if layout.chunk_dims:
        settings["chunks"] = (1, *map(min, layout.chunk_dims, shape))
    if layout.max_shape:
        settings["maxshape"] = (file.records, *map(max, layout.max_shape, shape))
    records = target.create_dataset(name, (file.records, *shape), file.dtype, **settings)
    part_bytes = math.prod(shape) * file.dtype.itemsize
    if part_bytes <= _BLOCK_BYTES:
        step = max(1, _BLOCK_BYTES // part_bytes)
        for first in range(0, file.records, step):
            count = min(step, file.records - first)
            records[first : first + count] = file.take(count * part_bytes).view(file.dtype).reshape(count, *shape)
        return
    line_bytes = part_bytes // shape[0]
    each = max(1, _BLOCK_BYTES // line_bytes)
    for record in range(file.records):
        for low in range(0, shape[0], each):
            high = min(low + each, shape[0])
            records[record, low:high] = file.take((high - low) * line_bytes).view(file.dtype).reshape(high - low, *shape[1:])


def _bytes_field(tag: int, body: bytes) -> bytes:
    return bytes([tag]) + varint(len(body)) + body


def _example_around(record_bytes: int, side: int) -> tuple[bytes, bytes]:
    """Return what comes before and after the record in its tf.Example {image: the record, size: its side}."""
    sides = _bytes_field(0x1A, _bytes_field(0x0A, varint(side)))  # Feature.int64_list
    size = _bytes_field(0x0A, _bytes_field(0x0A, b"size") + _bytes_field(0x12, sides))
    # From the inside out: BytesList.value, Feature.bytes_list, the map entry, Features, Example.
    value = b"\x0a" + varint(record_bytes)
    feature = b"\x0a" + varint(len(value) + record_bytes) + value
    entry = _bytes_field(0x0A, b"image") + b"\x12" + varint(len(feature) + record_bytes) + feature
    image = b"\x0a" + varint(len(entry) + record_bytes) + entry
    return b"\x0a" + varint(len(image) + record_bytes + len(size)) + image, size


def _write_tfrecord(file: File) -> list[Piece]:
    before, after = _example_around(file.record_bytes, file.shape[0])
    length = len(before) + file.record_bytes + len(after)
    with file.open(file.name) as sink, file.open(file.indices[0]) as index:
        if length <= _SHORT_RECORD_BYTES:
            for batch in file.batches(file.records):
                sink.write(_framed_examples(before, batch, after).data)
        else:
            for _ in range(file.records):
                for block in framed(length, chain([before], file.one_record(), [after])):
                    sink.write(block)
        stride = length + FRAME_BYTES
        index.write("".join(f"{record * stride} {stride}\n" for record in range(file.records)).encode())
        return [sink.piece(), index.piece()]


def _framed_examples(before: bytes, batch: NDArray[np.uint8], after: bytes) -> NDArray[np.uint8]:
    """Return the TFRecord stream of a batch of short records, each between `before` and `after`."""
    parts = [np.frombuffer(bytes(HEAD_BYTES) + before, np.uint8), batch, np.frombuffer(after + bytes(TAIL_BYTES), np.uint8)]
    shaped = [np.broadcast_to(part, (len(batch), part.shape[-1])) for part in parts]
    stream = np.concatenate(shaped, axis=1)
    content = stream.reshape(-1)
    fill_frames(content, np.full(len(batch), stream.shape[1] - FRAME_BYTES))
    return content


def _write_indexed(file: File) -> list[Piece]:
    with file.open(file.name) as sink, file.open(file.indices[0]) as offsets, file.open(file.indices[1]) as sizes:
        for block in file.blocks():
            sink.write(block.data)
        offsets.write((np.arange(file.records, dtype="<u8") * np.uint64(file.record_bytes)).data)
        sizes.write(np.full(file.records, file.record_bytes, "<u8").data)
        return [sink.piece(), offsets.piece(), sizes.piece()]


class _Compressor(Protocol):
    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _compressor(kind: str, level: int) -> _Compressor | None:
    match kind:
        case "gzip":
            return zlib.compressobj(level, wbits=31)
        case "bz2":
            return bz2.BZ2Compressor(max(1, level))
        case "xz":
            return lzma.LZMACompressor(preset=level)
    return None


def _write_csv(file: File) -> list[Piece]:
    """One line per record under a line of column numbers, as pandas reads it."""
    compressor = _compressor(file.layout.compression, file.layout.compression_level)
    columns = math.prod(file.shape)
    with file.open(file.name) as sink:
        for text in _csv_text(file, columns):
            sink.write(compressor.compress(text) if compressor else text)
        if compressor:
            sink.write(compressor.flush())
        return [sink.piece()]


def _csv_text(file: File, columns: int) -> Iterator[bytes]:
    for first in range(0, columns, _BLOCK_COLUMNS):
        last = min(first + _BLOCK_COLUMNS, columns)
        yield (",".join(map(str, range(first, last))) + ("\n" if last == columns else ",")).encode()
    small = np.arange(256).astype("S3") if file.dtype == np.uint8 else None
    done = 0
    for block in file.blocks():
        numbers = block.view(file.dtype)
        texts = small.take(numbers) if small is not None else numbers.astype("S")
        width = texts.dtype.itemsize
        letters = np.zeros((len(texts), width + 1), np.uint8)
        letters[:, :width] = texts.view(np.uint8).reshape(-1, width)
        letters[:, width] = ord(",")
        letters[(columns - 1 - done) % columns :: columns, width] = ord("\n")
        done += len(texts)
        flat = letters.reshape(-1)
        yield flat.compress(flat != 0).tobytes()


def _write_parquet(file: File) -> list[Piece]:
    """A table of `record` and `label`, or of the columns asked for; a row group to about half a mebibyte or one record."""
    layout = file.layout
    each = layout.row_group_rows or max(1, _BLOCK_BYTES // file.record_bytes)
    if min(each, file.records) * file.record_bytes > LARGEST_PAGE_BYTES - 4 * each:
        raise IotwinError(
            f"{file.name}: a parquet file cannot hold a record or a row group of 2 GiB or more; ask for smaller ones or for npy"
        )
    columns = [Column.of(*column) for column in layout.columns] or RECORD_COLUMNS
    with file.open(file.name) as sink:
        table = TableWriter(sink.write, layout.compression_level if layout.compression == "gzip" else None, columns)
        for first in range(0, file.records, each):
            rows = min(each, file.records - first)
            table.add(rows, _column_pages(file, rows) if layout.columns else _record_pages(file, rows))
        table.finish()
        return [sink.piece()]


def _record_pages(file: File, rows: int) -> Iterator[tuple[int, Iterator[bytes | memoryview]]]:
    """Yield the pages of `record`, whose values have their byte count before them, and of `label`."""
    yield rows * (4 + file.record_bytes), _counted(file, rows)
    yield 8 * rows, iter([bytes(8 * rows)])


def _counted(file: File, rows: int) -> Iterator[bytes | memoryview]:
    count = np.array([file.record_bytes], "<u4").view(np.uint8)
    if file.record_bytes > _BLOCK_BYTES:
        for _ in range(rows):
            yield count.data
            yield from file.one_record()
        return
    for batch in file.batches(rows):
        yield np.concatenate([np.broadcast_to(count, (len(batch), count.size)), batch], axis=1).reshape(-1).data


def _column_pages(file: File, rows: int) -> Iterator[tuple[int, Iterator[bytes | memoryview]]]:
    """Yield the pages of the columns asked for: nothing but numbers."""
    for _, dtype, elements in file.layout.columns:
        element = np.dtype(dtype)
        page_bytes, step = rows * elements * element.itemsize, _BLOCK_BYTES // element.itemsize * element.itemsize
        sizes = (min(step, page_bytes - start) for start in range(0, page_bytes, step))
        yield page_bytes, (as_numbers(file.content.take(size), element).view(np.uint8).data for size in sizes)


def _image_shape(file: File) -> tuple[int, int]:
    height, width = file.shape if len(file.shape) == 2 else (1, *file.shape)
    return height, width


def _write_jpeg(file: File) -> list[Piece]:
    height, width = _image_shape(file)
    left = jpeg.padded_pixels(height, width)
    with file.open(file.name) as sink:
        sink.write(jpeg.header(height, width))
        while left:
            count = min(_BLOCK_BYTES, left)
            sink.write(jpeg.coefficients(file.take(count)).data)
            left -= count
        sink.write(jpeg.END)
        return [sink.piece()]


def _write_png(file: File) -> list[Piece]:
    """An 8-bit grey PNG (RFC 2083) whose deflate stream is stored when its content cannot shrink anyway."""
    height, width = _image_shape(file)
    deflate = zlib.compressobj(0 if file.layout.entropy == 1 else 1)
    each = max(1, _BLOCK_BYTES // 2 // width)  # as deflate returns another array as large
    with file.open(file.name) as sink:
        sink.write(b"\x89PNG\r\n\x1a\n")
        _png_chunk(sink.write, b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        for first in range(0, height, each):
            count = min(each, height - first)
            lines = np.zeros((count, width + 1), np.uint8)  # a filter byte, none, before each line
            lines[:, 1:] = file.take(count * width).reshape(count, width)
            _png_chunk(sink.write, b"IDAT", deflate.compress(lines.data))
        _png_chunk(sink.write, b"IDAT", deflate.flush())
        _png_chunk(sink.write, b"IEND", b"")
        return [sink.piece()]


def _png_chunk(write: Sink, kind: bytes, body: bytes) -> None:
    write(struct.pack(">I", len(body)) + kind)
    write(body)
    write(struct.pack(">I", zlib.crc32(body, zlib.crc32(kind))))


_WRITERS: dict[str, Callable[[File], list[Piece]]] = {
    "bin": _write_bin, "npy": _write_npy, "npz": _write_npz, "hdf5": _write_hdf5, "tfrecord": _write_tfrecord, "csv": _write_csv,
    "parquet": _write_parquet, "jpeg": _write_jpeg, "png": _write_png,
    "indexed_binary": _write_indexed, "mmap_indexed_binary": _write_indexed,
}  # fmt: skip
