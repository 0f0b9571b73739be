"""Buckets of equal width on a logarithmic axis: the one arithmetic behind every histogram of sizes, times and counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def octaves(values: NDArray[Any], per_octave: int) -> NDArray[np.float64]:
    """Return where each value lies on the axis, in buckets of 1/`per_octave` octave from 1; values below 1 count as 1."""
    positions: NDArray[np.float64] = np.log2(np.maximum(values, 1)) * per_octave
    return positions


def bucket_from_zero(values: NDArray[np.int64], per_octave: int) -> NDArray[np.int64]:
    """Return the bucket of each whole number: 0 for zeros, then 1, 2, ... from 1 upwards."""
    buckets: NDArray[np.int64] = np.where(values > 0, np.floor(octaves(values, per_octave)).astype(np.int64) + 1, 0)
    return buckets
