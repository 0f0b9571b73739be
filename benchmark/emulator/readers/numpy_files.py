"""Read numpy's files: .npy by the same system calls as numpy.load, or by one read; and .npz."""

import ctypes
import io
import math
import os
import struct
import threading
import zipfile
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from iotwin.benchmark.emulator.readers.access import Opener, OpenFile, ReadStream, check_within, damaged, scratch_for, unreadable
from iotwin.benchmark.emulator.readers.sample import Sample, check_member
from iotwin.common.errors import IotwinError

_LOCAL_HEADER_BYTES = 30  # size of a zip member's header without its name; PKWARE APPNOTE 4.3.7
_ARRAY_NAME = "x.npy"
_HEADER_LIMIT_BYTES = 1 << 16
# numpy lets Python parse headers, which before 3.11.8 fails if several threads do so at once (CPython's issue 106905).
_one_parses = threading.Lock()
# A process forked meanwhile would never get the lock.
os.register_at_fork(before=_one_parses.acquire, after_in_parent=_one_parses.release, after_in_child=_one_parses.release)


class NumpyLoad:
    """Reads .npy files by the system calls of numpy.load, but into memory that is reused.

    numpy.load allocates memory for each array, whose page faults cost as much as reading a cached file. So the header is read by
    numpy's functions, and the content by the C library's functions that numpy.fromfile calls, in the same order.
    """

    def read(self, path: str, sample: int, samples: int) -> Sample:
        try:
            with open(path, "rb") as file:  # noqa: PTH123 - Path.open takes microseconds longer
                size_bytes = os.fstat(file.fileno()).st_size
                shape, fortran, dtype = _header(path, file)
                content_bytes = math.prod(shape) * dtype.itemsize
                # The offset of the content is given as 0, because asking the file for its position would cost a system call.
                content = scratch_for(path, size_bytes, 0, content_bytes)
                _fromfile(path, file, content)
        except OSError as error:
            raise unreadable(path, error) from None
        flat: NDArray[np.generic] = np.frombuffer(content, dtype)
        return Sample(_member(path, _shaped(flat, shape, fortran), sample, samples), size_bytes)


def _c_function(name: str, result: Any, *arguments: Any) -> Any:
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype, function.argtypes = result, arguments
    return function


_fdopen = _c_function("fdopen", ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
_ftell = _c_function("ftell", ctypes.c_long, ctypes.c_void_p)
_fseek = _c_function("fseek", ctypes.c_int, ctypes.c_void_p, ctypes.c_long, ctypes.c_int)
_fread = _c_function("fread", ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p)
_fclose = _c_function("fclose", ctypes.c_int, ctypes.c_void_p)


def _fromfile(path: str, file: BinaryIO, content: memoryview) -> None:
    """Fill `content` from the position of `file` on, as numpy.fromfile does: through a C stream of a duplicated descriptor."""
    stream = _fdopen(os.dup(file.fileno()), b"rb")
    before = _ftell(stream)
    try:
        _fseek(stream, file.tell(), os.SEEK_SET)
        _fseek(stream, 0, os.SEEK_CUR)
        target = (ctypes.c_char * len(content)).from_buffer(content)
        done = _fread(target, 1, len(content), stream)
        position = _ftell(stream)
    finally:
        _fclose(stream)
    if done != len(content):
        raise damaged(path, f"not a whole .npy file ({done} of {len(content)} bytes could be read)")
    os.lseek(file.fileno(), before, os.SEEK_SET)
    file.seek(position)


class Npy:
    """Reads .npy files through `opener`, by one read of the whole file."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        with self._open(path) as file:
            content = file.read(0, file.size_bytes)
            return Sample(_member(path, _array(path, content), sample, samples), file.size_bytes)


def _array(path: str, content: memoryview) -> NDArray[np.generic]:
    head = io.BytesIO(content[:_HEADER_LIMIT_BYTES])
    shape, fortran, dtype = _header(path, head)
    check_within(path, len(content), head.tell(), math.prod(shape) * dtype.itemsize)
    flat: NDArray[np.generic] = np.frombuffer(content, dtype, count=math.prod(shape), offset=head.tell())
    return _shaped(flat, shape, fortran)


def _header(path: str, file: BinaryIO) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Read the header of the open .npy `file`. Return (shape, True if in Fortran order, element type)."""
    try:
        version = np.lib.format.read_magic(file)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        with _one_parses:
            shape, fortran, dtype = read_header(file)
        if dtype.hasobject:
            raise ValueError("holds Python objects")
        if dtype.itemsize == 0 or min(shape, default=0) < 0:
            raise ValueError("holds no numbers")
    except OSError:
        raise
    except Exception as error:  # numpy raises various exceptions for damaged headers
        raise damaged(path, f"not a whole .npy file ({error})") from None
    return shape, fortran, dtype


def _shaped(flat: NDArray[np.generic], shape: tuple[int, ...], fortran: bool) -> NDArray[np.generic]:
    return flat.reshape(shape[::-1]).transpose() if fortran else flat.reshape(shape)


def _member(path: str, array: NDArray[np.generic], sample: int, samples: int) -> NDArray[np.generic]:
    """Return one sample of `array`. If the file has several samples, the last axis of `array` counts the samples, as in DLIO."""
    if samples == 1:
        return array
    check_member(path, sample, array.shape[-1] if array.ndim else 0)
    return np.ascontiguousarray(array[..., sample])


class Npz:
    """Reads the array `x` of .npz archives: the archive's directory, then the array by one read. The checksum is verified."""

    def __init__(self, opener: Opener) -> None:
        self._open = opener

    def read(self, path: str, sample: int, samples: int) -> Sample:
        with self._open(path) as file:
            stream = ReadStream(file)
            member = _directory_entry(path, stream)
            content = _member_bytes(path, file, member)
            read_bytes = stream.read_bytes + _LOCAL_HEADER_BYTES + member.compress_size
            return Sample(_member(path, _array(path, content), sample, samples), read_bytes)


def _directory_entry(path: str, stream: ReadStream) -> zipfile.ZipInfo:
    try:
        with zipfile.ZipFile(stream) as archive:
            return archive.getinfo(_ARRAY_NAME)
    except KeyError:
        raise damaged(path, f"has no array '{_ARRAY_NAME.removesuffix('.npy')}'") from None
    except IotwinError:
        raise
    except Exception as error:  # BadZipFile, or struct.error or NotImplementedError for a damaged directory
        raise damaged(path, f"not a whole .npz file ({error})") from None


def _member_bytes(path: str, file: OpenFile, member: zipfile.ZipInfo) -> memoryview:
    """Return the decompressed content of `member`. Raises IotwinError if its checksum is wrong."""
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
