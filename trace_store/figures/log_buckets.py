"""Buckets of equal width on a logarithmic axis, for histograms of sizes, times and counts."""

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

BUCKETS_PER_OCTAVE = 32  # in histograms from which percentiles are computed
_TABLED = 1 << 17  # buckets of smaller values come from a table, which takes a fifth of the time of a logarithm


def octaves(values: NDArray[Any], per_octave: int) -> NDArray[np.float64]:
    """Return log2(value) * `per_octave` for each of `values`; values below 1 count as 1. Its integer part is the bucket."""
    positions: NDArray[np.float64] = np.log2(np.maximum(values, 1)) * per_octave
    return positions


def bucket_from_zero(values: NDArray[np.int64], per_octave: int) -> NDArray[np.int64]:
    """Return the bucket of each non-negative integer: 0 for zero, 1 and more for others, `per_octave` buckets per doubling."""
    buckets: NDArray[np.int64] = _low_buckets(per_octave).take(values, mode="clip")
    high = np.flatnonzero(values >= _TABLED)
    buckets[high] = _buckets(values[high], per_octave)
    return buckets


@cache
def _low_buckets(per_octave: int) -> NDArray[np.int64]:
    return np.append(0, _buckets(np.arange(1, _TABLED), per_octave))


def _buckets(values: NDArray[np.int64], per_octave: int) -> NDArray[np.int64]:
    """Return the bucket of each positive integer."""
    return np.floor(octaves(values, per_octave)).astype(np.int64) + 1
