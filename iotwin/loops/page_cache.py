"""What of a file the page cache holds, and in which pieces; and how a job that maps its data found them there."""

import mmap
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

FOLIO_BYTES = 2 << 20  # the largest piece in which the kernel keeps a file; each begins at a multiple of its size
_PIECE_BYTES = 1 << 16  # what a page fault maps around it


def evict(path: Path) -> None:
    """Put a file, and nothing else, out of the page cache; what was not written yet has to be, first."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def cache_in_pages(path: Path, stretches: Sequence[tuple[int, int]]) -> None:
    """Have `stretches` of a file, (offset, bytes) in multiples of FOLIO_BYTES, in the page cache page by page.

    What was just written lies there in large folios, of which the kernel maps up to 2 MiB at a page fault: a job that maps the
    file then faults far less often than on data that have been read.
    """
    with path.open("rb", buffering=0) as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        for offset, size in stretches:
            os.posix_fadvise(file.fileno(), offset, size, os.POSIX_FADV_DONTNEED)
            while size > 0 and (part := os.pread(file.fileno(), min(size, _PIECE_BYTES), offset)):
                offset, size = offset + len(part), size - len(part)


def found_in_pages(recording: Path, twin: Path, files: Sequence[tuple[str, int]]) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Yield each of the (name, bytes) of `files` that the job found page by page, and its stretches (offset, bytes) of that kind.

    A page fault on data that have been read maps the pages around it, too; of large folios, in which data lie that were just
    written, it tells one page. Part of a file may have been read, or taken out of the cache, so each stretch of the size
    of the largest folio is looked at; one without a fault was found as most others.
    """
    touched = _touched(recording, twin)
    if touched.empty:
        return
    touched["stretch"] = touched["offset"] // FOLIO_BYTES
    several = touched.groupby(["name", "stretch"])["size"].median() > mmap.PAGESIZE
    mostly = bool(several.mean() > 0.5)
    for name, size in files:
        in_pages = np.full(-(-size // FOLIO_BYTES), mostly)
        known = several[several.index.get_level_values("name") == name].droplevel("name")
        known = known[known.index < len(in_pages)]  # what a job touches may have grown since
        in_pages[known.index] = known
        if in_pages.any():
            yield name, [(int(stretch) * FOLIO_BYTES, FOLIO_BYTES) for stretch in np.flatnonzero(in_pages)]


def _touched(recording: Path, twin: Path) -> pd.DataFrame:
    """The name, offset and bytes of each fault that the twin tells of; no rows where it maps nothing."""
    from benchmark.config import load
    from benchmark.config.listed_reads import parse
    from benchmark.config.recording import Op, read_recording

    if recording.exists():
        kept = read_recording(recording)
        touches = kept.columns["op"] == Op.TOUCH
        names = pd.Series([file.name for file in kept.header.files], dtype=object)
        subject, offset, size = (kept.columns[column][touches] for column in ("subject", "offset", "size"))
        return pd.DataFrame({"name": names.to_numpy()[subject], "offset": offset, "size": size})
    told = load(twin).twin if twin.exists() else None
    listed = (told.train_reads or []) if told and told.reader.mmap else []
    files = (told.train_files or []) if told else []
    rows = [(files[read.file], read.offset, read.size_bytes) for reads in listed for read in parse(reads)]
    return pd.DataFrame(rows, columns=["name", "offset", "size"])
