"""Evict files from the page cache, or put them there as the traced job found them: in single pages or in large folios."""

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from iotwin.common.untrusted_files import open_foreign

if TYPE_CHECKING:
    from iotwin.workload_yaml.recording import TwinRecording

FOLIO_BYTES = 2 << 20  # largest folio: a run of pages that the cache handles as one, beginning at a multiple of its size
_READ_BYTES = 1 << 22  # size of the reads that bring a file into the page cache
_PIECE_BYTES = 1 << 16  # bytes that a page fault maps (fault-around)


def evict(path: Path) -> None:
    """Remove a file from the page cache, after its unwritten pages have been written."""
    with open_foreign(path) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetch(path: Path) -> None:
    """Read a file, so that the page cache holds it."""
    with open_foreign(path) as file:
        while file.read(_READ_BYTES):
            pass


def cache_in_pages(path: Path, stretches: Sequence[tuple[int, int]]) -> None:
    """Put `stretches` of a file, (offset, bytes) in multiples of FOLIO_BYTES, into the page cache in single pages.

    Data that were just written are cached in large folios, and the kernel maps up to 2 MiB of a folio at a page fault. A job
    that maps the file then faults far less often than on data that were read.
    """
    with open_foreign(path) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for offset, size in stretches:
            os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_DONTNEED)
            while size > 0 and (part := os.pread(file.fileno(), min(size, _PIECE_BYTES), offset)):
                offset, size = offset + len(part), size - len(part)


def found_in_pages(touched: pd.DataFrame, files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield (name, stretches) for each file that the job found cached in single pages; a stretch is (offset, bytes).

    `touched`: the page faults (see `page_faults`). `files` are pairs (name, bytes).

    If data were read from disk, a page fault also maps the pages around the touched one. If data were just written, and are
    cached in large folios, the trace shows one page for each fault. A file may be cached in both ways, so each stretch of
    FOLIO_BYTES is judged separately. A stretch without faults gets the result of the majority.
    """
    if touched.empty:
        return
    touched = touched.assign(stretch=touched["offset"] // FOLIO_BYTES)
    several = touched.groupby(["name", "stretch"])["size"].median() > mmap.PAGESIZE
    mostly = bool(several.mean() > 0.5)
    for name, size in files:
        in_pages = np.full(-(-size // FOLIO_BYTES), mostly)
        known = several[several.index.get_level_values("name") == name].droplevel("name")
        known = known[known.index < len(in_pages)]  # the file may have grown in the job after its size was recorded
        in_pages[known.index] = known
        if in_pages.any():
            yield name, [(int(stretch) * FOLIO_BYTES, FOLIO_BYTES) for stretch in np.flatnonzero(in_pages)]


def page_faults(recording: "TwinRecording") -> pd.DataFrame:
    """Return a table of the name, offset and bytes of each page fault in `recording`; empty if the job mapped no file."""
    from iotwin.workload_yaml.recording import Op

    touches = recording.columns["op"] == Op.TOUCH
    names = pd.Series([file.name for file in recording.header.files], dtype=object)
    subject, offset, size = (recording.columns[column][touches] for column in ("subject", "offset", "size"))
    return pd.DataFrame({"name": names.to_numpy()[subject], "offset": offset, "size": size})
