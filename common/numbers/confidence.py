"""95 % confidence intervals of ratios, means, medians and quantiles over the steps of a run.

Consecutive steps are correlated, since a prefetched batch hides a slow read for some steps. So the steps are divided into at most
20 groups of consecutive steps, whose means are compared (Law, Simulation Modeling and Analysis, section 9.5.3: batch means).
"""

import math
from collections.abc import Callable, Iterable, Sequence
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
_DIGIT_BITS = 12
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
    return _estimate(value, np.add.reduceat(numerator, starts), np.add.reduceat(denominator, starts), total)


def _estimate(value: float, above: Numbers, below: Numbers, total: float) -> Estimate:
    """Return the ratio `value` with its interval, by the sums over each group of steps; `total` is that of the denominators."""
    batches = len(below)
    residuals = above - value * below
    deviation = math.sqrt(float((residuals**2).sum()) / (batches * (batches - 1))) / (total / batches)
    margin = _T[batches - 2] * deviation
    low = value - margin
    return Estimate(value, max(0.0, low) if value >= 0 else low, value + margin)


def mean(values: Numbers) -> Estimate | None:
    """Return the mean of `values` with its interval; None if there are no values."""
    return ratio(values, np.ones(len(values)))


def mean_of_parts(parts: Iterable[NDArray[np.int64]], count: int) -> Estimate:
    """Return `mean` of the `count` values (at least one) of all parts, of which one is in memory at a time."""
    batches = min(_BATCHES, count)
    starts, sums, done = np.arange(batches) * count // batches, np.zeros(batches, np.int64), 0
    for part in parts:
        np.add.at(sums, np.searchsorted(starts, np.arange(done, done + len(part)), side="right") - 1, part)
        done += len(part)
    if batches < 2:
        return Estimate(float(sums[0]), None, None)
    return _estimate(float(sums.sum()) / count, sums, np.diff(starts, append=count).astype(np.float64), float(count))


def quantile(values: Numbers, probability: float) -> Estimate:
    """Return the quantile of `values` at `probability` (0..1) with its interval. There must be at least one value.

    The bounds are order statistics near the quantile (David and Nagaraja, Order Statistics, section 7.1).
    """
    ordered, count = np.sort(values), len(values)
    bounds = [float(ordered[index]) if 0 <= index < count else None for index in _bounds(count, probability)]
    return Estimate(float(np.quantile(ordered, probability)), *bounds)


def _bounds(count: int, probability: float) -> tuple[int, int]:
    """Return the indices of the bounds of a quantile among `count` values in order."""
    middle, margin = count * probability, _Z * math.sqrt(count * probability * (1 - probability))
    return math.floor(middle - margin), math.ceil(middle + margin)


def quantiles(parts: Callable[[], Iterable[NDArray[np.int64]]], probabilities: Sequence[float]) -> list[Estimate]:
    """Return `quantile` of the values of all parts at each probability. There must be at least one value.

    `parts()` yields all values anew, of which one part is in memory at a time.
    """
    edges = [(len(part), int(part.min()), int(part.max())) for part in parts() if len(part)]
    count = sum(length for length, _, _ in edges)
    # Indices in order: the one below the quantile, and the bounds.
    wanted = [(int((count - 1) * probability), *_bounds(count, probability)) for probability in probabilities]
    indices = {index for below, low, high in wanted for index in (below, below + 1, low, high) if 0 <= index < count}
    ordered = _order_statistics(parts, indices, min(low for _, low, _ in edges), max(high for _, _, high in edges))
    found = []
    for probability, (below, low, high) in zip(probabilities, wanted, strict=True):
        between = np.quantile([ordered[below], ordered[min(below + 1, count - 1)]], (count - 1) * probability - below)
        found.append(Estimate(float(between), *(float(ordered[index]) if 0 <= index < count else None for index in (low, high))))
    return found


def _order_statistics(
    parts: Callable[[], Iterable[NDArray[np.int64]]], indices: Iterable[int], least: int, most: int
) -> dict[int, int]:
    """Return the values at `indices` of all values in order, which are from `least` to `most`.

    Each pass over the parts finds the next digit of each value (radix selection).
    """
    found = {index: (0, index) for index in indices}  # the digits found, and the index among the values with these digits
    for shift in reversed(range(0, (most - least).bit_length(), _DIGIT_BITS)):
        counts = {prefix: np.zeros(1 << _DIGIT_BITS, np.int64) for prefix in {prefix for prefix, _ in found.values()}}
        for part in parts():
            digits = (part - least) >> shift
            for prefix, count in counts.items():
                count += np.bincount(digits[digits >> _DIGIT_BITS == prefix] - (prefix << _DIGIT_BITS), minlength=len(count))
        for index, (prefix, rest) in found.items():
            up_to = np.cumsum(counts[prefix])
            digit = int(np.searchsorted(up_to, rest, side="right"))
            found[index] = ((prefix << _DIGIT_BITS) + digit, rest - int(up_to[digit - 1] if digit else 0))
    return {index: least + value for index, (value, _) in found.items()}


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
