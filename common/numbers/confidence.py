"""95 % confidence intervals of ratios, means, medians and quantiles over the steps of a run.

Consecutive steps are correlated, since a prefetched batch hides a slow read for some steps. So the steps are divided into at most
20 groups of consecutive steps, whose means are compared (Law, Simulation Modeling and Analysis, section 9.5.3: batch means).
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_BATCHES = 20
# Student's t, two-sided 95 %, by degrees of freedom from 1 to 19.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
)  # fmt: skip
_Z = 1.96
_MISSED = 0.025  # how often the median may lie beyond a bound

Numbers = NDArray[np.int64] | NDArray[np.float64]


class Estimate(NamedTuple):
    """A number and its 95 % confidence interval. `low` and `high` are None if there is only one step or repeat."""

    value: float
    low: float | None
    high: float | None

    def scaled(self, factor: float) -> "Estimate":
        """Return the estimate with the number and both bounds multiplied by `factor`."""
        return Estimate(*(None if bound is None else bound * factor for bound in self))  # type: ignore[arg-type]

    def at_most(self, most: float) -> "Estimate":
        """Return the estimate with the number and both bounds limited to `most`."""
        return Estimate(*(None if bound is None else min(most, bound) for bound in self))  # type: ignore[arg-type]


def ratio(numerator: Numbers, denominator: Numbers) -> Estimate | None:
    """Return sum(numerator) / sum(denominator), two arrays of shape (steps,); None if the denominators sum to 0 or less.

    The lower bound is at least 0 if the ratio is not negative. The variance over the groups of steps is estimated as for a ratio
    estimator (Cochran, Sampling Techniques, section 6.3).
    """
    total = float(denominator.sum())
    if not total > 0:
        return None
    value = float(numerator.sum()) / total
    batches = min(_BATCHES, len(denominator))
    if batches < 2:
        return Estimate(value, None, None)
    starts = np.arange(batches) * len(denominator) // batches
    above, below = np.add.reduceat(numerator, starts), np.add.reduceat(denominator, starts)
    residuals = above - value * below
    deviation = math.sqrt(float((residuals**2).sum()) / (batches * (batches - 1))) / (total / batches)
    margin = _T[batches - 2] * deviation
    low = value - margin
    return Estimate(value, max(0.0, low) if value >= 0 else low, value + margin)


def mean(values: Numbers) -> Estimate | None:
    """Return the mean of `values` with its interval; None if there are no values."""
    return ratio(values, np.ones(len(values)))


def quantile(values: Numbers, probability: float) -> Estimate:
    """Return the quantile of `values` at `probability` (0..1) with its interval. There must be at least one value.

    The bounds are order statistics near the quantile (David and Nagaraja, Order Statistics, section 7.1).
    """
    ordered = np.sort(values)
    count = len(ordered)
    middle, margin = count * probability, _Z * math.sqrt(count * probability * (1 - probability))
    low, high = math.floor(middle - margin), math.ceil(middle + margin)
    bounds = [float(ordered[index]) if 0 <= index < count else None for index in (low, high)]
    return Estimate(float(np.quantile(ordered, probability)), *bounds)


def median(values: Numbers) -> Estimate:
    """Return the median of `values` with its interval, whose bounds are None for fewer than 6 values.

    The bounds are two order statistics; the binomial distribution gives how often they enclose the median (David and Nagaraja,
    Order Statistics, section 7.1). So the interval holds for any distribution of the values, and for few of them.
    """
    ordered, count = np.sort(values), len(values)
    misses = np.cumsum([math.comb(count, below) / 2**count for below in range(count)])
    rank = int((misses <= _MISSED).sum())  # rank of the bounds, counted from both ends
    bounds = (float(ordered[rank - 1]), float(ordered[-rank])) if rank else (None, None)
    return Estimate(float(np.median(ordered)), *bounds)
