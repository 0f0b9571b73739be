"""Histograms of sizes, times and counts on one logarithmic axis: four bins an octave, from 1 to 2**42."""

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.figures.log_buckets import octaves

BINS_PER_OCTAVE = 4
BINS = 42 * BINS_PER_OCTAVE + 1

LOWER_EDGES: NDArray[np.float64] = 2.0 ** (np.arange(BINS) / BINS_PER_OCTAVE)


def log_bin(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the bin of each value, same shape; values below 1 count as 1, values beyond the axis are in the last bin."""
    bins: NDArray[np.int64] = np.minimum(octaves(values, BINS_PER_OCTAVE), BINS - 1).astype(np.int64)
    return bins


def shared_histogram(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the histogram (BINS,) in which each value is split between the two nearest edges, in proportion.

    So two values that hardly differ have similar histograms, even if the edge of a bin lies between them.
    """
    position = np.minimum(octaves(values, BINS_PER_OCTAVE), BINS - 2)
    low = position.astype(np.int64)
    upper = position - low
    return (np.bincount(low, 1.0 - upper, minlength=BINS) + np.bincount(low + 1, upper, minlength=BINS)).astype(float)


def table(
    row: NDArray[np.int64], column: NDArray[np.int64], weight: NDArray[np.int64] | None, rows: int, columns: int
) -> NDArray[np.float64]:
    """Return the sum of weights, or the count, of the entries of each cell, shape (rows, columns)."""
    return np.bincount(row * columns + column, weights=weight, minlength=rows * columns).reshape(rows, columns).astype(float)


def quantile(histogram: NDArray[np.float64], share: float) -> float | None:
    """Return the value below which `share` of the mass lies, to a quarter of an octave; None if the histogram is empty."""
    if histogram.sum() <= 0:
        return None
    cumulative = np.cumsum(histogram)
    return float(LOWER_EDGES[np.searchsorted(cumulative, share * cumulative[-1])])
