"""Keep the pages that a run reads in the page cache until the run ends, so that all runs find the same pages there.

A kernel that reclaims memory early (DAMON) removes pages from the page cache that no process maps. Each is then read again by a
separate request: cold runs of one job took from 210 to 470 requests for the same bytes. The kernel also splits the large folios
of recently written data, so a job that maps the data has other page faults: two twins of one trace scored 0.860 and 0.980.
"""

import ctypes
import mmap
import multiprocessing
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.common.processes import children
from iotwin.common.processes.children import safe_path
from iotwin.common.processes.memory_limit import free_bytes
from iotwin.common.untrusted_files import open_foreign

_CHECK_EVERY_S = 0.1
_SHARE_OF_TIME = 0.1  # largest share of a processor's time that the checks may take
_MOST_FILES = 30_000  # files that one process maps at most; the kernel allows 65 530 maps
# largest share of the free memory that files may take; with larger data sets, the kernel chooses which pages remain
_SHARE_OF_MEMORY = 0.5
_GRACE_S = 10.0
_MAP_FIXED = 0x10
_MAP_FAILED = ctypes.c_void_p(-1).value

_spawn = multiprocessing.get_context("spawn")
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]


@contextmanager
def kept_cached(paths: Sequence[Path]) -> Iterator[None]:
    """Keep the pages of the files `paths` that are read within the block in the page cache.

    A separate process maps the files and touches their cached pages, since the kernel keeps mapped pages. It reads nothing from
    disk. If there are more than 30,000 files, or if they are larger than half of the free memory, nothing is kept.
    """
    sizes = [path.stat().st_size for path in paths]
    if not any(sizes) or len(paths) > _MOST_FILES or sum(sizes) > _SHARE_OF_MEMORY * free_bytes():
        yield
        return
    keeper = _spawn.Process(target=_keep, args=(list(zip(paths, sizes, strict=True)), os.getpid()), daemon=True)
    with safe_path():
        children.start(keeper)
    try:
        yield
    finally:
        keeper.kill()
        children.end(keeper, _GRACE_S, _GRACE_S)


def _keep(files: list[tuple[Path, int]], parent_pid: int) -> None:
    children.become_child("iotwin-keeper", parent_pid)
    children.ready()
    pages = Pages(files)
    while True:
        began = time.monotonic()
        pages.hold()
        time.sleep(max(_CHECK_EVERY_S, (time.monotonic() - began) / _SHARE_OF_TIME))


class Pages:
    """The pages of files of known sizes, mapped one file after another."""

    def __init__(self, files: Sequence[tuple[Path, int]]) -> None:
        starts = np.cumsum([0, *(-(-size // mmap.PAGESIZE) for _, size in files)])
        self._map = mmap.mmap(-1, int(starts[-1]) * mmap.PAGESIZE, mmap.MAP_PRIVATE, mmap.PROT_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)
        self._held = np.zeros(starts[-1], bool)
        for (path, size), start in zip(files, starts.tolist(), strict=False):
            if size:
                self._map_file(path, size, start * mmap.PAGESIZE)
        self._map.madvise(mmap.MADV_RANDOM)  # touching a page that was just removed then reads no other pages

    def _map_file(self, path: Path, size: int, offset: int) -> None:
        with open_foreign(path) as file:
            flags = mmap.MAP_SHARED | _MAP_FIXED
            address = _libc.mmap(self._bytes.ctypes.data + offset, size, mmap.PROT_READ, flags, file.fileno(), 0)
        if address == _MAP_FAILED:
            raise _last_error()

    def cached(self) -> NDArray[np.bool_]:
        """Return which pages are in the page cache, shape (pages,)."""
        found = np.empty(self._held.size, np.uint8)
        if _libc.mincore(self._bytes.ctypes.data, self._bytes.size, found.ctypes.data):
            raise _last_error()
        return (found & 1).astype(bool)

    def hold(self) -> None:
        """Touch the pages that have entered the page cache since the last call, so that the kernel keeps them."""
        cached = self.cached()
        self._bytes[np.flatnonzero(cached & ~self._held) * mmap.PAGESIZE].sum()
        self._held = cached


def _last_error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
