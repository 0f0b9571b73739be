"""Write dlrm data sets: rows in the format of Criteo Terabyte, in which clicks depend on the features.

Dense features are counts with log-uniform magnitudes, nearly as in Criteo's data. Categories are uniform over each feature's
range. A click (label 1) is likely for small values of the first dense feature and for the first value of the smallest
categorical feature, so that a real model's loss falls.
"""

import io
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.data_set_files import Piece, PieceWriter, WriteStream
from iotwin.datagen.layouts import DlrmDaysLayout, DlrmLayout, npy_header
from iotwin.datagen.random_numbers import NOISE, bulk_stream

_BLOCK_ROWS = 1 << 10  # 160 KiB of samples; malloc maps larger arrays anew each time, which causes page faults
_DECIMALS = 5  # decimal digits of the largest dense feature, 65535
_HEXADECIMAL = np.frombuffer(b"0123456789abcdef", np.uint8)
_PREDICTIVE_CATEGORY = 5  # index of the categorical feature with three values
# 2**32 times the click probability of rows in which none, one or both of the two predictive features favour a click.
_CLICK_LIMITS = np.array([0.01, 0.11, 0.21]) * 2.0**32

# Factors and shifts of the columns for `rows`, repeated for _TILE_ROWS rows. The label's factor leaves the label unchanged. A
# dense feature's 16 bits are shifted right by up to 15 bits, which makes all magnitudes about equally frequent.
_TILE_ROWS = 1 << 6
_RANGES = np.array([1 << 32, *[1 << 16] * DlrmLayout.DENSE, *DlrmLayout.CATEGORIES], np.uint64)
_EVEN_RANGES, _ODD_RANGES = np.tile(_RANGES[::2], _TILE_ROWS), np.tile(_RANGES[1::2], _TILE_ROWS)
_SHIFT_BITS = np.tile(np.array([0] + [15] * DlrmLayout.DENSE + [0] * len(DlrmLayout.CATEGORIES), np.uint32), _TILE_ROWS)
_LOW_HALF, _HALF_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)


def rows(stream: np.random.SFC64, count: int) -> NDArray[np.int32]:
    """Return the next `count` samples of `stream`, shape (count, 40): label, 13 dense features, 26 categorical features.

    A value is (32 random bits * size of its range) / 2**32, which needs no division (Lemire 2019). The bits of a dense feature
    are first shifted right by the number in their last four bits. Each 64-bit word holds two columns. Many rows are computed at
    a time, since numpy is fast only on long arrays.
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
    favouring = (sample[:, 1] < 16).astype(np.intp) + (sample[:, 14 + _PREDICTIVE_CATEGORY] == 0)
    sample[:, 0] = sample[:, 0].view(np.uint32) < _CLICK_LIMITS[favouring]
    return sample


def write_unit(
    layout: DlrmLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the samples or the counts that belong to unit `unit` into the temporary file, and return their piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    with PieceWriter(directory, planned.name, written, planned.offset) as file:
        if planned.name == layout.COUNTS_NAME:
            file.write(_npz("counts", DlrmLayout.CATEGORIES))
        else:
            for block in _blocks(seed, unit, planned.size_bytes // layout.SAMPLE_BYTES):
                file.write(block.data)
        return [file.piece()]


def _blocks(seed: int, unit: int, count: int) -> Iterator[NDArray[np.int32]]:
    stream = bulk_stream(seed, unit, NOISE)
    for first in range(0, count, _BLOCK_ROWS):
        yield rows(stream, min(_BLOCK_ROWS, count - first))


def _npz(name: str, values: Sequence[int]) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.array(values, np.int64)})
    return buffer.getvalue()


def write_day(
    layout: DlrmDaysLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write the file of the day with the index `unit`, or a file of counts, under a temporary name, and return its piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    days = layout.day_samples(samples)
    with PieceWriter(directory, planned.name, written) as file:
        if planned.name == DlrmLayout.COUNTS_NAME:
            file.write(_npz("counts", DlrmLayout.CATEGORIES))
        elif planned.name == layout.DAY_COUNTS_NAME:
            file.write(_npz("total_per_file", days.tolist()))
        elif layout.form == "text":
            for block in _blocks(seed, unit, int(days[unit])):
                file.write(lines(block).data)
        else:
            _write_arrays(file, seed, unit, int(days[unit]))
        return [file.piece()]


def _write_arrays(file: PieceWriter, seed: int, unit: int, count: int) -> None:
    """Write the `count` samples of a day as an .npz. To save memory, the samples are drawn again for each of its three arrays."""
    dense = 1 + DlrmLayout.DENSE
    members = (("X_int", slice(1, dense), (count, 13)), ("X_cat", slice(dense, None), (count, 26)), ("y", 0, (count,)))
    with zipfile.ZipFile(WriteStream(file), "w") as archive:
        for name, columns, shape in members:
            # A ZipInfo has a constant date, 1980, so that the same request results in the same bytes.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                member.write(npy_header(DlrmLayout.DTYPE, shape))
                for block in _blocks(seed, unit, count):
                    member.write(np.ascontiguousarray(block[:, columns]).data)


def lines(block: NDArray[np.int32]) -> NDArray[np.uint8]:
    """Return the rows of `block` as bytes of Criteo's text lines: label and dense features in decimal, categories in hex."""
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
