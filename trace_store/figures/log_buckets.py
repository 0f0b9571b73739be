"""Buckets of equal width on a logarithmic axis, for histograms of sizes, times and counts."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def octaves(values: NDArray[Any], per_octave: int) -> NDArray[np.float64]:
    """Return log2(value) * `per_octave` for each of `values`; values below 1 count as 1. Its integer part is the bucket."""
    positions: NDArray[np.float64] = np.log2(np.maximum(values, 1)) * per_octave
    return positions


def bucket_from_zero(values: NDArray[np.int64], per_octave: int) -> NDArray[np.int64]:
    """Return the bucket of each non-negative integer: 0 for zero, 1 and more for others, `per_octave` buckets per doubling."""
    buckets: NDArray[np.int64] = np.where(values > 0, np.floor(octaves(values, per_octave)).astype(np.int64) + 1, 0)
    return buckets
