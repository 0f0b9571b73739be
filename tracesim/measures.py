"""Functions that score the similarity of two amounts, mixes or histograms in [0, 1]: symmetric, and exactly 1 for equal input.

Two empty inputs score 1; an empty and a non-empty input score 0.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def ratio(a: float, b: float) -> float:
    """Return the smaller of two non-negative amounts divided by the larger."""
    larger = max(a, b)
    return min(a, b) / larger if larger > 0 else 1.0


def s_curve(likeness: float) -> float:
    """Map a score in [0, 1] so that small differences hardly count: 0.95 becomes 0.995; 0, 0.5 and 1 remain unchanged."""
    return 1.0 - 2.0 * (1.0 - likeness) ** 2 if likeness > 0.5 else 2.0 * likeness**2


def cell_ratios(a: Floats, b: Floats) -> float:
    """Return the weighted mean of `ratio` over the cells of two arrays of one shape.

    The weight of a cell is the square root of its share, so that a rare cell still has weight: with 1 % of the amount, a tenth
    of the full weight.
    """
    larger = np.maximum(a, b)
    used = larger > 0
    if not used.any():
        return 1.0
    weights = np.sqrt((shares(a) + shares(b)) / 2)[used]
    return float(np.sum(weights * (np.minimum(a, b)[used] / larger[used])) / np.sum(weights))


def shares(amounts: Floats) -> Floats:
    """Return `amounts` divided by their sum; zeros if the sum is zero."""
    total = float(amounts.sum())
    return amounts / total if total > 0 else np.zeros_like(amounts, dtype=float)


def shared_mass(a: Floats, b: Floats) -> float:
    """Return the share that two mixes have in common: one minus their total variation distance."""
    if a.sum() <= 0 or b.sum() <= 0:
        return float(a.sum() <= 0 and b.sum() <= 0)
    return max(0.0, 1.0 - 0.5 * float(np.abs(shares(a) - shares(b)).sum()))


def hellinger(a: Floats, b: Floats) -> float:
    """Return one minus the Hellinger distance of two mixes. It falls more than `shared_mass` if one mix lacks a rare part."""
    if a.sum() <= 0 or b.sum() <= 0:
        return float(a.sum() <= 0 and b.sum() <= 0)
    difference = np.sqrt(shares(a)) - np.sqrt(shares(b))
    return max(0.0, 1.0 - float(np.sqrt(0.5 * np.sum(difference**2))))


def overlap(a: Floats, b: Floats, half_width: int) -> float:
    """Return the `shared_mass` of two histograms of shape (bins,), after blurring both with a triangle.

    `half_width` is half the base of the triangle, in bins. Values that are 2 `half_width` or more apart have overlap 0. If all
    values differ by a factor f and `half_width` is h octaves, the result is about (1 - log2(f) / 2h)**2.
    """
    return shared_mass(blurred(a, half_width), blurred(b, half_width))


def blurred(histogram: Floats, half_width: int) -> Floats:
    """Return the histogram convolved with a triangle, shape (bins + 2 * half_width - 2,)."""
    kernel = half_width - np.abs(np.arange(1 - half_width, half_width, dtype=float))
    return np.convolve(histogram, kernel / kernel.sum())


def weighted_mean(scores: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean of `scores`: exactly 1 if every score is 1, and 1 if no weight is above zero."""
    total = sum(weights)
    return sum(s * w for s, w in zip(scores, weights, strict=True)) / total if total > 0 else 1.0
