"""The content of dlrm data sets: rows of Criteo Terabyte's form, in which clicks depend on what the features say.

Dense features are counts whose magnitudes are log-uniform, as Criteo's are nearly; categories are uniform over each
feature's range. A click (label 1) is likely for small values of the first dense feature and for the first value of the smallest
categorical feature, so that a real model's loss falls.
"""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from datagen.files import Piece, PieceWriter
from datagen.layouts import DlrmLayout
from datagen.randomness import NOISE, bulk_stream

_BLOCK_ROWS = 1 << 12  # 640 KiB of samples: a block stays in a core's cache from its draw to its write
_TELLING_CATEGORY = 5  # the feature with three values
_CLICK_SHARES = (0.01, 0.10)  # of rows in which neither telling feature speaks for a click, and added by each that does


def rows(stream: np.random.PCG64, count: int) -> NDArray[np.int32]:
    """Return the next `count` samples of `stream`, shape (count, 40): label, 13 dense, 26 categorical."""
    draws = stream.random_raw(20 * count).view(np.uint32).reshape(count, 40)
    sample = np.empty((count, 40), np.dtype(DlrmLayout.DTYPE))
    dense = draws[:, 1:14]
    # 16 random bits shifted by up to 15 more: every magnitude from 0 to 65535 is about as frequent.
    np.right_shift(dense >> np.uint32(16), dense & np.uint32(15), out=sample[:, 1:14], casting="unsafe")
    # Multiply and shift maps 32 random bits onto a range without a division (Lemire 2019); the bias is below 2**-3 of a count.
    wide = draws[:, 14:] * np.array(DlrmLayout.CATEGORIES, np.uint64)
    np.right_shift(wide, np.uint64(32), out=sample[:, 14:], casting="unsafe")
    telling = (sample[:, 1] < 16).astype(np.float64) + (sample[:, 14 + _TELLING_CATEGORY] == 0)
    sample[:, 0] = draws[:, 0] < (_CLICK_SHARES[0] + _CLICK_SHARES[1] * telling) * 2.0**32
    return sample


def write_unit(
    layout: DlrmLayout, samples: int, seed: int, directory: Path, unit: int, written: Callable[[int], None]
) -> list[Piece]:
    """Write unit `unit`, a run of samples or the counts, into its file's temporary name and return its piece."""
    (planned,) = layout.unit_pieces(samples, seed, unit)
    with PieceWriter(directory, planned.name, written, planned.offset) as file:
        if planned.name == layout.COUNTS_NAME:
            file.write(_counts())
            return [file.piece()]
        stream = bulk_stream(seed, unit, NOISE)
        left = planned.size_bytes // layout.SAMPLE_BYTES
        while left:
            count = min(_BLOCK_ROWS, left)
            file.write(rows(stream, count).data)
            left -= count
        return [file.piece()]


def _counts() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, counts=np.array(DlrmLayout.CATEGORIES, np.int64))
    return buffer.getvalue()
