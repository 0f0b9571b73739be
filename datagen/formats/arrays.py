"""Files of bare arrays: bin, npy, npz, and the indexed binary of Megatron."""

import zipfile

import numpy as np

from iotwin.datagen.files import Piece, WriteStream
from iotwin.datagen.formats.file import File
from iotwin.datagen.layouts import npy_header


def _stored(file: File) -> tuple[int, ...]:
    """Return the shape of a file's one array: DLIO keeps samples on the last axis."""
    return (*file.shape, file.records)


def write_bin(file: File) -> list[Piece]:
    """Write the records one after the other, with nothing around them."""
    with file.open(file.name) as sink:
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def write_npy(file: File) -> list[Piece]:
    """Write one array of all records, samples on the last axis."""
    with file.open(file.name) as sink:
        sink.write(npy_header(file.dtype.str, _stored(file)))
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def write_npz(file: File) -> list[Piece]:
    """Write the array of all records, x, and that of their labels, y, stored or deflated."""
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


def write_indexed(file: File) -> list[Piece]:
    """Write the records, and the files of their offsets and of their sizes (uint64, little-endian)."""
    with file.open(file.name) as sink, file.open(file.indices[0]) as offsets, file.open(file.indices[1]) as sizes:
        for block in file.blocks():
            sink.write(block.data)
        offsets.write((np.arange(file.records, dtype="<u8") * np.uint64(file.record_bytes)).data)
        sizes.write(np.full(file.records, file.record_bytes, "<u8").data)
        return [sink.piece(), offsets.piece(), sizes.piece()]
