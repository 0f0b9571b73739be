"""Histograms of sizes, times and counts on one logarithmic axis: four bins per octave, from 1 to 2**42."""

import numpy as np
from numpy.typing import NDArray

from iotwin.trace_store.figures.log_buckets import octaves

BINS_PER_OCTAVE = 4
BINS = 42 * BINS_PER_OCTAVE + 1

LOWER_EDGES: NDArray[np.float64] = 2.0 ** (np.arange(BINS) / BINS_PER_OCTAVE)


def log_bin(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the index of each value's bin, same shape. Values below 1 count as 1; values above 2**42 go to the last bin."""
    bins: NDArray[np.int64] = np.minimum(octaves(values, BINS_PER_OCTAVE), BINS - 1).astype(np.int64)
    return bins


def shared_histogram(values: NDArray[np.int64] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a histogram of shape (BINS,). Each value is divided between its two nearest bins; the nearer one gets more.

    So two nearly equal values have similar histograms even if a bin's edge lies between them.
    """
    position = np.minimum(octaves(values, BINS_PER_OCTAVE), BINS - 2)
    low = position.astype(np.int64)
    upper = position - low
    return (np.bincount(low, 1.0 - upper, minlength=BINS) + np.bincount(low + 1, upper, minlength=BINS)).astype(float)


def table(
    row: NDArray[np.int64], column: NDArray[np.int64], weight: NDArray[np.int64] | None, rows: int, columns: int
) -> NDArray[np.float64]:
    """Return a table of shape (rows, columns), whose cells are sums of weights or, if `weight` is None, counts.

    Entry i belongs to the cell (`row[i]`, `column[i]`) and has the weight `weight[i]`.
    """
    return np.bincount(row * columns + column, weights=weight, minlength=rows * columns).reshape(rows, columns).astype(float)


def quantile(histogram: NDArray[np.float64], share: float) -> float | None:
    """Return the `share`-quantile of a histogram of shape (BINS,), exact to a quarter of an octave; None if it is empty."""
    if histogram.sum() <= 0:
        return None
    cumulative = np.cumsum(histogram)
    return float(LOWER_EDGES[np.searchsorted(cumulative, share * cumulative[-1])])
