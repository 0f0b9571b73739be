"""Write files of plain arrays: bin, npy, npz, and Megatron's indexed binary format."""

import zipfile

import numpy as np

from iotwin.datagen.data_set_files import Piece, WriteStream
from iotwin.datagen.formats.file_to_write import File
from iotwin.datagen.layouts import npy_header


def _array_shape(file: File) -> tuple[int, ...]:
    """Return the shape of the array of all records. As in DLIO, the last axis counts the samples."""
    return (*file.shape, file.records)


def write_bin(file: File) -> list[Piece]:
    """Write a file of the records' bytes, one record after the other."""
    with file.open(file.name) as sink:
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def write_npy(file: File) -> list[Piece]:
    """Write a .npy file with one array of all records."""
    with file.open(file.name) as sink:
        sink.write(npy_header(file.dtype.str, _array_shape(file)))
        for block in file.blocks():
            sink.write(block.data)
        return [sink.piece()]


def write_npz(file: File) -> list[Piece]:
    """Write an .npz archive, compressed or not, with an array `x` of all records and an array `y` of their labels."""
    method = zipfile.ZIP_DEFLATED if file.layout.compression == "zip" else zipfile.ZIP_STORED
    labels = np.zeros(file.records, np.int64)
    with file.open(file.name) as sink:
        with zipfile.ZipFile(WriteStream(sink), "w", method, compresslevel=file.layout.compression_level) as archive:
            for name, header, blocks in (
                ("x.npy", npy_header(file.dtype.str, _array_shape(file)), file.blocks()),
                ("y.npy", npy_header("<i8", labels.shape), iter([labels.view(np.uint8)])),
            ):
                member = zipfile.ZipInfo(name)  # its constant date makes equal requests result in equal bytes
                member.compress_type = method
                with archive.open(member, "w", force_zip64=True) as stream:
                    stream.write(header)
                    for block in blocks:
                        stream.write(block.data)
        return [sink.piece()]


def write_indexed(file: File) -> list[Piece]:
    """Write three files: the records, their offsets, and their sizes (uint64, little-endian)."""
    with file.open(file.name) as sink, file.open(file.indices[0]) as offsets, file.open(file.indices[1]) as sizes:
        for block in file.blocks():
            sink.write(block.data)
        offsets.write((np.arange(file.records, dtype="<u8") * np.uint64(file.record_bytes)).data)
        sizes.write(np.full(file.records, file.record_bytes, "<u8").data)
        return [sink.piece(), offsets.piece(), sizes.piece()]
