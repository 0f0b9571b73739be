"""Open files and memory maps of a replayed process, by the descriptors that they had in the job."""

import ctypes
import mmap
import os
from collections.abc import Callable
from typing import NamedTuple

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
    """Open files of a process, by the job's descriptor and file.

    `open_again(file, flags)` opens a file if the recording lacks its opening.
    """

    def __init__(self, open_again: Callable[[int, int], int]) -> None:
        self._open_again = open_again
        self._ours: dict[tuple[int, int], int] = {}
        self._of_file: dict[int, int] = {}
        self._spare: dict[int, int] = {}

    def opened(self, fd: int, file: int, ours: int, duplicated: bool = False) -> None:
        """Record that the job's descriptor `fd` of `file` is the descriptor `ours`.

        `duplicated`: the job duplicated it, so the file remains usable after `fd` is closed.
        """
        self._ours[fd, file] = self._of_file[file] = ours
        if duplicated and file not in self._spare and len(self._spare) < _MOST_SPARE:
            self._spare[file] = os.dup(ours)

    def of(self, fd: int, file: int, flags: int) -> int:
        """Return the replay's descriptor for the job's descriptor `fd` of `file`.

        If `fd` is unknown, return another open descriptor of `file`, or open the file.
        """
        found = self._ours.get((fd, file))
        if found is None:
            found = self._of_file.get(file, self._spare.get(file))
        if found is None:
            found = self._open_again(file, flags)
            self.opened(fd, file, found)
        return found

    def closed(self, fd: int, file: int, flags: int) -> int:
        """Forget the job's descriptor `fd` of `file`. Return the replay's descriptor to close, a duplicate if `fd` is unknown."""
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
    """The maps of files that one thread made. A page is read by touching it, without holding Python's lock.

    `of_process`: the `Maps` of all threads of the process, and those inherited at its fork. All of them are used.
    There are no locks, since a fork could copy a locked lock. Instead, a map that another thread is touching is not unmapped.
    """

    def __init__(self, fds: Descriptors, of_process: "list[Maps]") -> None:
        self._fds, self._of_process = fds, of_process
        self._maps: dict[int, _Map] = {}
        self._touching = -1  # the file that is being touched
        self._byte = ctypes.create_string_buffer(1)
        of_process.append(self)

    def map(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Map `size` bytes of the file from `offset` on, at most to the end of the file."""
        ours = self._fds.of(fd, file, flags)
        begin = max(offset, 0) // mmap.PAGESIZE * mmap.PAGESIZE
        length = min(max(size, 1), os.fstat(ours).st_size - begin)  # touching pages after the end would raise SIGBUS
        if length <= 0:
            return 0
        address = _libc.mmap(None, length, mmap.PROT_READ, mmap.MAP_SHARED, ours, begin)
        if address == _FAILED:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        before, self._maps[file] = self._maps.get(file), _Map(address, begin, length)
        if before is not None:
            self._unmap(before, file)
        return 0

    def touch(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Read the byte at `offset` of the file through a map, and return 0. If no map covers the byte, create one."""
        self._touching = file  # set before the search: a thread that unmaps checks it after the map cannot be found any more
        found = self._covering(file, offset)
        if found is None:
            self.map(file, fd, 0, _LARGEST_MAP, flags)
            found = self._covering(file, offset)
        if found is not None:
            _libc.memcpy(self._byte, found.address + offset - found.begin, 1)
        self._touching = -1
        return 0

    def unmap(self, file: int, fd: int, offset: int, size: int, flags: int) -> int:
        """Remove a map of the file: one that this thread made, or else one of another thread."""
        for each in (self, *self._of_process):
            if (found := each._maps.pop(file, None)) is not None:
                self._unmap(found, file)
                break
        return 0

    def _covering(self, file: int, offset: int) -> "_Map | None":
        """Return a map of the file that contains `offset`, preferably the thread's own; None if there is none."""
        for each in (self, *self._of_process):
            found = each._maps.get(file)
            if found is not None and found.begin <= offset < found.begin + found.length:
                return found
        return None

    def _unmap(self, found: "_Map", file: int) -> None:
        if not any(each._touching == file for each in self._of_process if each is not self):
            _libc.munmap(found.address, found.length)


class _Map(NamedTuple):
    address: int
    begin: int  # offset in the file
    length: int
