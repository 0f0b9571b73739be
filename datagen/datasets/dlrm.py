"""The content of dlrm data sets: rows of Criteo Terabyte's form, in which clicks depend on the features.

Dense features are counts whose magnitudes are log-uniform, as Criteo's are nearly; categories are uniform over each
feature's range. A click (label 1) is likely for small values of the first dense feature and for the first value of the smallest
categorical feature, so that a real model's loss falls.
"""

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.files import Piece, PieceWriter, WriteStream
from iotwin.datagen.layouts import DlrmDaysLayout, DlrmLayout, npy_header
from iotwin.datagen.randomness import NOISE, bulk_stream

_BLOCK_ROWS = 1 << 10  # 160 KiB of samples: larger arrays go back to the system when they are freed, and cost its page faults
_DECIMALS = 5  # of the largest dense feature, 65535
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_TELLING_CATEGORY = 5  # the feature with three values
# Of 2**32, the share of clicks among rows in which none, one and both of the two predictive features favour a click.
_CLICK_LIMITS = np.array([0.01, 0.11, 0.21]) * 2.0**32

# What rows() multiplies and shifts the columns by, repeated for as many rows as are worked on at a time. The label's range
# leaves its bits as they are; a dense feature's 16 bits, shifted by up to 15 more, make every magnitude about as frequent.
_TILE_ROWS = 1 << 6
_RANGES = np.array([1 << 32, *[1 << 16] * DlrmLayout.DENSE, *DlrmLayout.CATEGORIES], np.uint64)
_EVEN_RANGES, _ODD_RANGES = np.tile(_RANGES[::2], _TILE_ROWS), np.tile(_RANGES[1::2], _TILE_ROWS)
_SHIFT_BITS = np.tile(np.array([0] + [15] * DlrmLayout.DENSE + [0] * len(DlrmLayout.CATEGORIES), np.uint32), _TILE_ROWS)
_LOW_HALF, _HALF_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def rows(stream: np.random.SFC64, count: int) -> NDArray[np.int32]:
    """Return the next `count` samples of `stream`, shape (count, 40): label, 13 dense, 26 categorical.

    A column's value is (32 random bits * range) / 2**32, which maps onto the range without a division (Lemire 2019). The bias is
    below 2**-3 of a count. The bits of a dense column are first shifted right by their own last four. Each 64-bit word holds two
    columns. Many rows are computed at a time, since numpy is fast only on long arrays.
    """
    words = stream.random_raw(-(-count // _TILE_ROWS) * _EVEN_RANGES.size).reshape(-1, _EVEN_RANGES.size)
    draws = words.view("<u4")
    draws >>= draws & _SHIFT_BITS
    even = words & _LOW_HALF
    even *= _EVEN_RANGES
    even >>= _HALF_BITS
    words >>= _HALF_BITS
    words *= _ODD_RANGES
    words &= ~_LOW_HALF
    words |= even
    sample: NDArray[np.int32] = words.view(DlrmLayout.DTYPE).reshape(-1, DlrmLayout.COLUMNS)[:count]
    telling = (sample[:, 1] < 16).astype(np.intp) + (sample[:, 14 + _TELLING_CATEGORY] == 0)
    sample[:, 0] = sample[:, 0].view(np.uint32) < _CLICK_LIMITS[telling]
    return sample


def write_unit(
    layout: DlrmLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write unit `unit`, a run of samples or the counts, into its file's temporary name and return its piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    with PieceWriter(directory, planned.name, written, planned.offset) as file:
        if planned.name == layout.COUNTS_NAME:
            file.write(_array_file("counts", DlrmLayout.CATEGORIES))
        else:
            for block in _blocks(seed, unit, planned.size_bytes // layout.SAMPLE_BYTES):
                file.write(block.data)
        return [file.piece()]


def _blocks(seed: int, unit: int, count: int) -> Iterator[NDArray[np.int32]]:
    """Yield the `count` samples of a unit, some thousands at a time."""
    stream = bulk_stream(seed, unit, NOISE)
    for first in range(0, count, _BLOCK_ROWS):
        yield rows(stream, min(_BLOCK_ROWS, count - first))


def _array_file(name: str, values: Sequence[int]) -> bytes:
    """Return an .npz of one int64 array."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.array(values, np.int64)})
    return buffer.getvalue()


def write_day(
    layout: DlrmDaysLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the file of day `unit`, or one of the counts, under its temporary name and return its piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    days = layout.day_samples(samples)
    with PieceWriter(directory, planned.name, written) as file:
        if planned.name == DlrmLayout.COUNTS_NAME:
            file.write(_array_file("counts", DlrmLayout.CATEGORIES))
        elif planned.name == layout.DAY_COUNTS_NAME:
            file.write(_array_file("total_per_file", days.tolist()))
        elif layout.form == "text":
            for block in _blocks(seed, unit, int(days[unit])):
                file.write(lines(block).data)
        else:
            _write_arrays(file, seed, unit, int(days[unit]))
        return [file.piece()]


def _write_arrays(file: PieceWriter, seed: int, unit: int, count: int) -> None:
    """Write the day's arrays one after the other. Each array draws the samples again, to save memory."""
    dense = 1 + DlrmLayout.DENSE
    members = (("X_int", slice(1, dense), (count, 13)), ("X_cat", slice(dense, None), (count, 26)), ("y", 0, (count,)))
    with zipfile.ZipFile(WriteStream(file), "w") as archive:
        for name, columns, shape in members:
            # A new ZipInfo is dated 1980, so that the same request gives the same bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                member.write(npy_header(DlrmLayout.DTYPE, shape))
                for block in _blocks(seed, unit, count):
                    member.write(np.ascontiguousarray(block[:, columns]).data)


def lines(block: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return samples as Criteo's text lines: label and dense features in decimal, categories in 8 hexadecimal digits."""
    numbers, categories = block[:, : 1 + DlrmLayout.DENSE], block[:, 1 + DlrmLayout.DENSE :].view(np.uint32)
    powers = np.array([10**exponent for exponent in range(_DECIMALS - 1, -1, -1)], np.int32)
    decimal = np.empty((*numbers.shape, _DECIMALS + 1), np.uint8)
    decimal[..., :-1] = numbers[..., None] // powers % 10 + ord("0")
    decimal[..., -1] = ord("\t")
    shown = np.ones(decimal.shape, bool)
    shown[..., : _DECIMALS - 1] = numbers[..., None] >= powers[:-1]
    shifts = np.arange(28, -1, -4, dtype=np.uint32)
    hexadecimal = np.empty((*categories.shape, 9), np.uint8)
    hexadecimal[..., :-1] = _HEXADECIMAL[categories[..., None] >> shifts & np.uint32(15)]
    hexadecimal[..., -1] = ord("\t")
    hexadecimal[:, -1, -1] = ord("\n")
    content = np.concatenate([decimal.reshape(len(block), -1), hexadecimal.reshape(len(block), -1)], axis=1)
    kept = np.concatenate([shown.reshape(len(block), -1), np.ones((len(block), hexadecimal[0].size), bool)], axis=1)
    return content.reshape(-1).compress(kept.reshape(-1))
