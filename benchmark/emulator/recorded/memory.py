"""Descriptors and maps of a replayed process, by the numbers that they had in the job."""

import ctypes
import mmap
import os
from collections.abc import Callable

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_libc.memcpy.restype = ctypes.c_void_p
_FAILED = ctypes.c_void_p(-1).value
_LARGEST_MAP = 1 << 46
_MOST_SPARE = 256


class Descriptors:
    """Open files of a process, by the job's descriptor and file; `open_again(file, flags)` opens what the job had otherwise."""

    def __init__(self, open_again: Callable[[int, int], int]) -> None:
        self._open_again = open_again
        self._ours: dict[tuple[int, int], int] = {}
        self._of_file: dict[int, int] = {}
        self._spare: dict[int, int] = {}

    def opened(self, fd: int, file: int, ours: int, duplicated: bool = False) -> None:
        """Note that the job's descriptor `fd` of `file` is `ours`; one that it duplicated stays usable when `fd` is closed."""
        self._ours[fd, file] = self._of_file[file] = ours
        if duplicated and file not in self._spare and len(self._spare) < _MOST_SPARE:
            self._spare[file] = os.dup(ours)

    def of(self, fd: int, file: int, flags: int) -> int:
        """Return our descriptor of the file: the same one where that is known, else any other of the file, else a new one."""
        found = self._ours.get((fd, file))
        if found is None:
            found = self._of_file.get(file, self._spare.get(file))
        if found is None:
            found = self._open_again(file, flags)
            self.opened(fd, file, found)
        return found

    def closed(self, fd: int, file: int, flags: int) -> int:
        """Return the descriptor to close; of one that the job had duplicated, a duplicate."""
        found = self._ours.pop((fd, file), None)
        if found is None:
            return os.dup(self.of(fd, file, flags))
        if self._of_file.get(file) == found:
            del self._of_file[file]
            for (_, other), ours in self._ours.items():
                if other == file:
                    self._of_file[file] = ours
        return found


class Maps:
    """Maps of files; a page is read by touching it, without Python's lock."""

    def __init__(self, fds: Descriptors) -> None:
        self._fds = fds
        self._maps: dict[int, tuple[int, int, int]] = {}  # file: address, offset, length
        self._byte = ctypes.create_string_buffer(1)

    def map(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Map `size` bytes of the file from `offset` on, as far as it reaches."""
        ours = self._fds.of(fd, file, flags)
        begin = max(offset, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(max(size, 1), os.fstat(ours).st_size - begin)  # behind its end lies nothing but SIGBUS
        if length <= 0:
            return 0
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, ours, begin)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self.unmap(file, fd, offset, size, flags)
        self._maps[file] = address, begin, length
        return 0

    def touch(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Read a byte at `offset`."""
        at = self._maps.get(file)
        if at is None or not at[1] <= offset < at[1] + at[2]:
            self.map(file, fd, 0, _LARGEST_MAP, flags)
            at = self._maps.get(file)
        if at is not None and at[1] <= offset < at[1] + at[2]:
            _libc.memcpy(self._byte, at[0] + offset - at[1], 1)
        return 0

    def unmap(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Take the file's map away."""
        at = self._maps.pop(file, None)
        if at is not None:
            _libc.munmap(at[0], at[2])
        return 0

    def close(self) -> None:
        """Forget all maps: they go with the process, as most of the job's did."""
        self._maps.clear()
