"""Histograms with logarithmic buckets, which give percentiles of any number of values in little memory, with a known error."""

import numpy as np

from iotwin.trace_store.figures.log_buckets import BUCKETS_PER_OCTAVE, bucket_from_zero
from iotwin.trace_visuals.bins import Floats
from iotwin.trace_visuals.call_columns import Ints

# A percentile is the mean of the values in its bucket. If these differ, its error is less than the bucket's width.
RELATIVE_ERROR = 2 ** (1 / BUCKETS_PER_OCTAVE) - 1
_BUCKETS = 64 * BUCKETS_PER_OCTAVE + 1  # bucket 0 counts the zeros; the other buckets reach to 2**64


class LogHistogram:
    """Histograms of whole numbers from 0, one per row. Rows are added as their first values arrive."""

    def __init__(self) -> None:
        self.counts = np.zeros((0, _BUCKETS), dtype=np.int64)
        self._totals = np.zeros((0, _BUCKETS))  # sum of the values in each bucket
        self._most = np.zeros(0, dtype=np.int64)

    def add(self, row: Ints, value: Ints) -> None:
        """Count each of `value` in the histogram with the index in `row`, an array of the same shape."""
        if not len(row):
            return
        self._grow(int(row.max()) + 1)
        cell = row * _BUCKETS + bucket_from_zero(value, BUCKETS_PER_OCTAVE)
        self.counts += np.bincount(cell, minlength=self.counts.size).reshape(self.counts.shape)
        self._totals += np.bincount(cell, weights=value, minlength=self.counts.size).reshape(self.counts.shape)
        np.maximum.at(self._most, row, value)

    def later(self, other: "LogHistogram") -> None:
        """Add the values that another histogram has counted."""
        rows = max(len(self.counts), len(other.counts))
        self._grow(rows)
        other._grow(rows)
        self.counts += other.counts
        self._totals += other._totals
        self._most = np.maximum(self._most, other._most)

    def _grow(self, rows: int) -> None:
        more = rows - len(self.counts)
        if more > 0:
            self.counts = np.pad(self.counts, ((0, more), (0, 0)))
            self._totals = np.pad(self._totals, ((0, more), (0, 0)))
            self._most = np.pad(self._most, (0, more))

    def percentile(self, rows: list[int], share: float) -> float:
        """Return the value below which `share` (0..1) of the values in `rows` are, within RELATIVE_ERROR; NaN without values."""
        counts = self.counts[rows].sum(axis=0)
        total = int(counts.sum())
        if not total:
            return float("nan")
        bucket = int(np.searchsorted(np.cumsum(counts), max(1, np.ceil(share * total))))
        return float(self._totals[rows, bucket].sum() / counts[bucket])

    def count(self, row: int) -> int:
        """Return the number of values in the row."""
        return int(self.counts[row].sum()) if row < len(self.counts) else 0

    def total(self, rows: list[int]) -> int:
        """Return the sum of all values in `rows`."""
        return int(self._totals[[row for row in rows if row < len(self._totals)]].sum())

    def most(self, rows: list[int]) -> int:
        """Return the greatest value in `rows`, 0 if there are none."""
        return int(self._most[rows].max()) if rows else 0

    def coarse(self, rows: list[int], per_octave: int) -> tuple[Ints, Floats]:
        """Return (counts of the values in `rows` by bucket, edges of the buckets). An octave has `per_octave` buckets."""
        counts = self.counts[rows].sum(axis=0)
        wide = counts[1:].reshape(-1, BUCKETS_PER_OCTAVE // per_octave).sum(axis=1)
        edges = 2.0 ** (np.arange(len(wide) + 1) / per_octave)
        return np.concatenate(([counts[0]], wide)), np.concatenate(([0.0], edges))
