"""Write HDF5 files. The HDF5 library writes an empty file, and contiguous data sets are streamed between its metadata."""

import math
import os
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder
from iotwin.common.paths_below import open_beneath
from iotwin.common.untrusted_files import open_foreign
from iotwin.datagen.data_set_files import PARTIAL_SUFFIX, Piece, read_open_piece
from iotwin.datagen.formats.file_to_write import BLOCK_BYTES, File

if TYPE_CHECKING:
    import h5py


def write_hdf5(file: File) -> list[Piece]:
    """Write the data set `labels`, and the records in one or more data sets. Raises IotwinError if h5py is not installed."""
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
        path = Path(f"/proc/self/fd/{opened.fileno()}")  # the library requires a path; this one leads to no other file
        with h5py.File(path, "w") as target:
            target.create_dataset("labels", data=np.zeros(file.records, np.int64))
            for index in range(layout.datasets):
                _fill_dataset(file, target, f"records_{index}")
        os.fsync(opened.fileno())
        return [read_open_piece(opened, file.name, 0, path.stat().st_size, file.written)]


def _dataset_shape(file: File) -> tuple[int, ...]:
    """Return the shape of a record's part in each data set. As in DLIO, a first dimension of 1 is left out."""
    layout = file.layout
    lines, *others = file.shape
    lines //= layout.datasets
    dropped = lines == 1 and others and layout.record_dims and not (layout.chunk_dims or layout.max_shape)
    return tuple(others) if dropped else (lines, *others)


@lru_cache(maxsize=16)
def _hdf5_frame(shape: tuple[int, ...], dtype: str) -> tuple[bytes, bytes]:
    """Return the bytes before and after the records in an HDF5 file with a data set of `shape` and `dtype`."""
    import h5py

    with scratch_folder() as directory:
        path = directory / "frame"
        with h5py.File(path, "w") as target:
            target.create_dataset("labels", data=np.zeros(shape[0], np.int64))
            settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            settings.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
            settings.set_fill_time(h5py.h5d.FILL_TIME_NEVER)  # keeps the temporary file sparse
            records = target.create_dataset("records_0", shape, dtype, dcpl=settings)
            offset, size_bytes = records.id.get_offset(), records.id.get_storage_size()
        with open_foreign(path) as content:
            before = content.read(offset)
            content.seek(offset + size_bytes)
            return before, content.read()


def _fill_dataset(file: File, target: "h5py.File", name: str) -> None:
    """Create the data set `name` in `target`, and write the records in blocks: several short records, or a part of a long one."""
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
    if part_bytes <= BLOCK_BYTES:
        step = max(1, BLOCK_BYTES // part_bytes)
        for first in range(0, file.records, step):
            count = min(step, file.records - first)
            records[first : first + count] = file.take(count * part_bytes).view(file.dtype).reshape(count, *shape)
        return
    line_bytes = part_bytes // shape[0]
    each = max(1, BLOCK_BYTES // line_bytes)
    for record in range(file.records):
        for low in range(0, shape[0], each):
            high = min(low + each, shape[0])
            records[record, low:high] = file.take((high - low) * line_bytes).view(file.dtype).reshape(high - low, *shape[1:])
