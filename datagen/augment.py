"""Change copies of a data set randomly, so that a copy has other bytes than its original.

Volumes are flipped and blurred or sharpened. Values of tables and words of texts are moved. All functions work on blocks of whole
planes, rows or lines. Each copied file has a separate stream of random numbers.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError
from iotwin.datagen.layouts import DlrmLayout

_BLOCK_BYTES = 1 << 20
_MOVED_SHARE = 0.1  # share of a text's words that are swapped; the same share is deleted, and the same inserted

Bytes = NDArray[np.uint8]


class Change(NamedTuple):
    """How one copy of a volume is changed."""

    flips: tuple[bool, bool, bool]  # True for each of the axes (D, H, W) along which the volume is mirrored
    sharpness: float  # from -1 (blurred) over 0 (unchanged) to 1 (sharpened)


def volume_change(stream: np.random.SFC64) -> Change:
    """Return a random change drawn from `stream`, which flips at least one axis."""
    flips = 1 + int(stream.random_raw()) % 7
    sharpness = int(stream.random_raw()) * 2.0**-63 - 1
    return Change((bool(flips & 1), bool(flips & 2), bool(flips & 4)), sharpness)


def changed_planes(volume: NDArray[np.generic], change: Change, image: bool) -> Iterator[NDArray[np.generic]]:
    """Yield the planes (H, W) of `volume` (D, H, W) after `change`. If `image` is False, it is a mask, which is only flipped."""
    flipped = volume[tuple(slice(None, None, -1 if flip else 1) for flip in change.flips)]
    for plane in flipped:
        yield np.ascontiguousarray(_filtered(plane, change.sharpness) if image else plane)


def _filtered(plane: NDArray[np.generic], sharpness: float) -> NDArray[np.generic]:
    """Return plane + sharpness * (plane - blur), clipped to the plane's range. The blur is (1, 2, 1) / 4 in both directions."""
    values = plane.astype(np.float32)
    padded = np.pad(values, 1, mode="edge")
    along = (padded[:-2] + 2 * padded[1:-1] + padded[2:]) / 4
    blurred = (along[:, :-2] + 2 * along[:, 1:-1] + along[:, 2:]) / 4
    return np.clip(values + sharpness * (values - blurred), values.min(), values.max()).astype(plane.dtype)


def shuffled_rows(rows: NDArray[np.int32], stream: np.random.SFC64) -> NDArray[np.int32]:
    """Return Criteo's binary rows, shape (count, 40), with the values of every categorical column shuffled among the rows."""
    result = rows.copy()
    for column in range(1 + DlrmLayout.DENSE, DlrmLayout.COLUMNS):
        result[:, column] = rows[_permutation(stream, len(rows)), column]
    return result


def _permutation(stream: np.random.SFC64, count: int) -> NDArray[np.int64]:
    return np.argsort(stream.random_raw(count), kind="stable")


def line_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the content of `file` in blocks of whole lines, about a mebibyte each."""
    while block := file.read(_BLOCK_BYTES):
        yield block + file.readline()


def shuffled_lines(block: bytes, stream: np.random.SFC64, path: Path) -> Bytes:
    """Return Criteo's text lines in `block` with the values of every categorical column shuffled among the lines.

    Raises IotwinError, which names `path`, if a line does not have Criteo's 40 columns.
    """
    data, starts, ends = _fields(block, b"\t\n")
    lines = int(np.count_nonzero(data[ends - 1] == ord("\n")))
    last = data[ends[DlrmLayout.COLUMNS - 1 :: DlrmLayout.COLUMNS] - 1]
    if len(ends) != lines * DlrmLayout.COLUMNS or (last != ord("\n")).any():
        raise IotwinError(f"{path} has lines without Criteo's {DlrmLayout.COLUMNS} tab-separated columns; it cannot be shuffled")
    order = np.arange(len(ends), dtype=np.int64).reshape(lines, DlrmLayout.COLUMNS)
    for column in range(1 + DlrmLayout.DENSE, DlrmLayout.COLUMNS):
        order[:, column] = order[:, column][_permutation(stream, lines)]
    return _gathered(data, starts, ends, order.reshape(-1))


def moved_words(block: bytes, stream: np.random.SFC64) -> Bytes:
    """Return the text lines in `block` with random words moved, deleted and inserted. The last word of a line never changes.

    A tenth of the words are swapped with the next word, a tenth deleted, and a tenth inserted from other lines.
    """
    data, starts, ends = _fields(block, b" \n")
    inner = data[ends - 1] == ord(" ")
    kind = (stream.random_raw(len(ends)) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    order = np.arange(len(ends))
    swap = np.flatnonzero((kind[:-1] < _MOVED_SHARE) & inner[:-1] & inner[1:])
    swap = swap[np.diff(swap, prepend=-2) > 1]  # swaps must not overlap
    order[swap], order[swap + 1] = swap + 1, swap
    delete = inner & (kind > 1 - _MOVED_SHARE)
    insert = np.flatnonzero(inner & (kind >= _MOVED_SHARE) & (kind < 2 * _MOVED_SHARE))
    words = np.flatnonzero(inner)
    inserted = words[stream.random_raw(len(insert)) % np.uint64(max(1, len(words)))] if len(words) else insert
    kept = np.flatnonzero(~delete)
    return _gathered(data, starts, ends, np.insert(order[kept], np.searchsorted(kept, insert), inserted))


def _fields(block: bytes, separators: bytes) -> tuple[Bytes, NDArray[np.int64], NDArray[np.int64]]:
    """Return (bytes of `block`, which end in a newline, first offset of each field, end offset of each field).

    A field includes the separator after it.
    """
    data = np.frombuffer(block if block.endswith(b"\n") else block + b"\n", np.uint8)
    ends = np.flatnonzero((data == separators[0]) | (data == separators[1])) + 1
    return data, np.concatenate([[0], ends[:-1]]), ends


def _gathered(data: Bytes, starts: NDArray[np.int64], ends: NDArray[np.int64], order: NDArray[np.int64]) -> Bytes:
    lengths = (ends - starts)[order]
    shift = starts[order] - np.concatenate([[0], np.cumsum(lengths)[:-1]])
    positions: NDArray[np.int64] = np.arange(int(lengths.sum()), dtype=np.int64) + np.repeat(shift, lengths)
    return data.take(positions)
