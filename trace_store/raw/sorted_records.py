"""Read binary records in order of time, from files that are nearly in order, in chunks that fit in memory.

Recorders append the buffers of the CPUs one by one, so records are nearly in order, except records of long calls. A sample of the
times divides all time into ranges, each with about one chunk of records. A chunk is gathered from the few blocks with records of
its range. A block may be read several times. Nothing is written.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

CHUNK_ROWS = 1 << 15  # 2.6 MB of events; they and their copies are most of a tracer's memory
_BLOCK_ROWS = 1 << 14
_MOST_SAMPLED = 1 << 21


_Block = tuple[Path, int, int]  # a file, the index of the first record of the block, the number of its records


def sorted_chunks(
    paths: Sequence[Path], record: np.dtype[np.void], time: str, chunk_rows: int = CHUNK_ROWS
) -> Iterator[NDArray[np.void]]:
    """Yield the records of type `record` in the files `paths`, sorted by their field `time`, in chunks of about `chunk_rows`.

    Records with equal times keep the order of the files. A cut-off last record of a file is left out. A chunk is larger if the
    sample of the times is inexact, or if many records have the same time.
    """
    blocks = _blocks(paths, record)
    bounds = _bounds(blocks, record, time, chunk_rows)
    blocks_of: list[list[_Block]] = [[] for _ in range(len(bounds) + 1)]
    for block in blocks:
        for index in np.unique(_range_of(_read(block, record)[time], bounds)).tolist():
            blocks_of[index].append(block)
    for index, found in enumerate(blocks_of):
        pieces = []
        for block in found:
            records = _read(block, record)
            pieces.append(records[_range_of(records[time], bounds) == index])
        if pieces:
            gathered = np.concatenate(pieces)
            yield gathered[np.argsort(gathered[time], kind="stable")]


def _blocks(paths: Sequence[Path], record: np.dtype[np.void]) -> list[_Block]:
    counts = [(path, path.stat().st_size // record.itemsize) for path in paths]
    return [(path, first, min(_BLOCK_ROWS, count - first)) for path, count in counts for first in range(0, count, _BLOCK_ROWS)]


def _read(block: _Block, record: np.dtype[np.void]) -> NDArray[np.void]:
    path, first, count = block
    return np.fromfile(path, record, count, offset=first * record.itemsize)


def _range_of(times: NDArray[np.int64], bounds: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.searchsorted(bounds, times, side="right")


def _bounds(blocks: list[_Block], record: np.dtype[np.void], time: str, chunk_rows: int) -> NDArray[np.int64]:
    """Return the times that separate ranges of about `chunk_rows` records, from a sample: at most every 64th record."""
    rows = sum(count for _, _, count in blocks)
    ranges = -(-rows // chunk_rows)
    if ranges <= 1:
        return np.zeros(0, np.int64)
    step = max(64, rows // _MOST_SAMPLED)
    sample = np.concatenate([_read(block, record)[time][::step].copy() for block in blocks])
    sample.sort()
    return np.unique(sample[np.arange(1, ranges) * len(sample) // ranges])
