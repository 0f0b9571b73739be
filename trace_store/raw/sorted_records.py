"""Read binary records in order of time, from a file that is nearly in order, in chunks that fit in memory.

Recorders append the buffers of the CPUs one by one, so records are nearly in order, except records of long calls. A sample of the
times divides all time into ranges, each with about one chunk of records. A chunk is gathered from the few blocks of the file that
hold records of its range. A block may be read several times. Nothing is written.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 1 << 15  # 2.6 MB of events; they and their copies are most of a tracer's memory
_BLOCK_ROWS = 1 << 14
_MOST_SAMPLED = 1 << 21


def sorted_chunks(path: Path, record: np.dtype[np.void], time: str, chunk_rows: int = CHUNK_ROWS) -> Iterator[NDArray[np.void]]:
    """Yield the records of type `record` in the file `path`, sorted by their field `time`, in chunks of about `chunk_rows`.

    Records with equal times keep the order of the file. A cut-off last record is left out. A chunk is larger if the sample of the
    times is inexact, or if many records have the same time.
    """
    rows = path.stat().st_size // record.itemsize
    bounds = _bounds(path, record, time, rows, chunk_rows)
    blocks_of: list[list[int]] = [[] for _ in range(len(bounds) + 1)]
    for block in range(-(-rows // _BLOCK_ROWS)):
        for index in np.unique(_range_of(_read(path, record, block, rows)[time], bounds)).tolist():
            blocks_of[index].append(block)
    for index, blocks in enumerate(blocks_of):
        pieces = []
        for block in blocks:
            records = _read(path, record, block, rows)
            pieces.append(records[_range_of(records[time], bounds) == index])
        if pieces:
            gathered = np.concatenate(pieces)
            yield gathered[np.argsort(gathered[time], kind="stable")]


def _read(path: Path, record: np.dtype[np.void], block: int, rows: int) -> NDArray[np.void]:
    count = min(_BLOCK_ROWS, rows - block * _BLOCK_ROWS)
    return np.fromfile(path, record, count, offset=block * _BLOCK_ROWS * record.itemsize)


def _range_of(times: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(bounds, times, side="right")


def _bounds(path: Path, record: np.dtype[np.void], time: str, rows: int, chunk_rows: int) -> NDArray[np.int64]:
    """Return the times that separate ranges of about `chunk_rows` records, from a sample: at most every 64th record."""
    ranges = -(-rows // chunk_rows)
    if ranges <= 1:
        return np.zeros(0, np.int64)
    step = max(64, rows // _MOST_SAMPLED)
    sample = np.concatenate([_read(path, record, block, rows)[time][::step].copy() for block in range(-(-rows // _BLOCK_ROWS))])
    sample.sort()
    return np.unique(sample[np.arange(1, ranges) * len(sample) // ranges])
