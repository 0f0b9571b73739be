"""Readers of numpy's files: .npy as numpy.load reads it, system call by system call, or whole in one go; and .npz."""

import io
import os
import struct
import zipfile
import zlib

import numpy as np
from numpy.typing import NDArray

from benchmark.readers.access import Opener, OpenFile, Stream, damaged, unreadable
from benchmark.readers.sample import Sample, check_member
from tracing_tools.trace.errors import IotwinError

_LOCAL_HEADER_BYTES = 30  # of a zip member, before its name; PKWARE APPNOTE 4.3.7
_ARRAY_NAME = "x.npy"


class NumpyLoad:
    """The .npy reader of a real job: numpy.load, whatever the kernel sees of it."""

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return sample `sample` of the `samples` in the file; IotwinError, naming it, when it is not whole."""
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - Path.open takes microseconds more
                array = np.load(file, allow_pickle=False)
                size_bytes = os.fstat(file.fileno()).st_size
        except OSError as error:
            raise unreadable(path, error) from None
        except Exception as error:  # numpy has no common type for what a damaged header or a short file raises
            raise damaged(path, f"not a whole .npy file ({error})") from None
        if not isinstance(array, np.ndarray):
            raise damaged(path, "is an archive, not a .npy file")
        return Sample(_member(path, array, sample, samples), size_bytes)


class Npy:
    """The .npy reader for a chosen access: one read of the whole file."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return sample `sample` of the `samples` in the file; IotwinError, naming it, when it is not whole."""
        with self._open(path) as file:
            content = file.read(0, file.size_bytes)
            return Sample(_member(path, _array(path, content), sample, samples), file.size_bytes)


def _array(path: str, content: memoryview) -> NDArray[np.generic]:
    """Return the array in the bytes of a .npy file."""
    head = io.BytesIO(content[:4096])
    try:
        version = np.lib.format.read_magic(head)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(head)
        if dtype.hasobject:
            raise ValueError("holds Python objects")
        flat = np.frombuffer(content, dtype, count=int(np.prod(shape, dtype=np.int64)), offset=head.tell())
    except Exception as error:  # numpy has no common type for what a damaged header raises
        raise damaged(path, f"not a whole .npy file ({error})") from None
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


def _member(path: str, array: NDArray[np.generic], sample: int, samples: int) -> NDArray[np.generic]:
    """Return one sample of the array, which has the samples on its last axis where it has several, as DLIO keeps them."""
    if samples == 1:
        return array
    check_member(path, sample, array.shape[-1] if array.ndim else 0)
    return np.ascontiguousarray(array[..., sample])


class Npz:
    """The reader of the array `x` of a .npz archive: its directory, then the array in one read, its checksum verified."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        """Return sample `sample` of the `samples` in the file; IotwinError, naming it, when it is not whole."""
        with self._open(path) as file:
            stream = Stream(file)
            member = _directory_entry(path, stream)
            content = _member_bytes(path, file, member)
            read_bytes = stream.read_bytes + _LOCAL_HEADER_BYTES + member.compress_size
            return Sample(_member(path, _array(path, content), sample, samples), read_bytes)


def _directory_entry(path: str, stream: Stream) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(stream) as archive:
            return archive.getinfo(_ARRAY_NAME)
    except KeyError:
        raise damaged(path, f"has no array '{_ARRAY_NAME.removesuffix('.npy')}'") from None
    except IotwinError:
        raise
    except Exception as error:  # BadZipFile, and struct.error or NotImplementedError from what is no directory
        raise damaged(path, f"not a whole .npz file ({error})") from None


def _member_bytes(path: str, file: OpenFile, member: zipfile.ZipInfo) -> memoryview:
    """Return the member's content; the checksum is compared, as zipfile does."""
    header = file.read(member.header_offset, _LOCAL_HEADER_BYTES)
    name_bytes, extra_bytes = struct.unpack_from("<HH", header, 26)
    content = file.read(member.header_offset + _LOCAL_HEADER_BYTES + name_bytes + extra_bytes, member.compress_size)
    if member.compress_type == zipfile.ZIP_DEFLATED:
        try:
            content = memoryview(zlib.decompress(content, -15, member.file_size))
        except zlib.error as error:
            raise damaged(path, error) from None
    elif member.compress_type != zipfile.ZIP_STORED:
        raise damaged(path, f"is compressed by method {member.compress_type}, which numpy does not write")
    if zlib.crc32(content) != member.CRC:
        raise damaged(path, "the checksum of its content is wrong")
    return content
