"""Draw the record sizes of a data set's files so that even few files have the requested mean and standard deviation."""

from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from iotwin.datagen.random_numbers import SIZES, random_words, uniforms

_FIT_ROUNDS = 40
_GRID = 1 << 14


class SizeDistribution(NamedTuple):
    """The distribution of record sizes over files: `normal` or `lognormal`, or `histogram` of (size in bytes, weight)."""

    mean_bytes: int
    stdev_bytes: int = 0
    distribution: str = "normal"
    histogram: tuple[tuple[int, float], ...] = ()


@lru_cache(maxsize=4)
def record_sizes(sizes: SizeDistribution, files: int, seed: int) -> NDArray[np.int64]:
    """Return the record size in bytes, at least 1, of every file, shape (files,).

    Sampling is stratified: the distribution is divided into as many equally probable parts as there are files, and each file
    draws from a different part, in random order. With independent draws, the mean and the deviation would be far less exact.
    """
    if not sizes.stdev_bytes and not sizes.histogram:
        return np.full(files, sizes.mean_bytes, np.int64)
    order = np.argsort(random_words(seed, 0, SIZES, files), kind="stable")
    quantiles = (order + uniforms(seed, 1, SIZES, files)) / files
    if sizes.histogram:
        drawn_from, weights = np.array(sizes.histogram, np.float64).T
        steps = np.cumsum(weights) / weights.sum()
        index = np.minimum(np.searchsorted(steps, quantiles, side="right"), len(drawn_from) - 1)
        return np.asarray(drawn_from[index], np.int64)
    normal = _normal_quantiles(quantiles)
    if sizes.distribution == "lognormal":
        drawn = _lognormal(normal, sizes.mean_bytes, sizes.stdev_bytes)
    else:
        centre, width = _clipped_normal(sizes.mean_bytes, sizes.stdev_bytes)
        drawn = centre + width * normal
    return np.asarray(np.maximum(1, np.rint(drawn)), np.int64)


def _normal_quantiles(quantiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values of the standard normal distribution at `quantiles`, probabilities, interpolated in a table."""
    scores = np.linspace(-6.5, 6.5, _GRID)
    normal = NormalDist()
    return np.interp(quantiles, [normal.cdf(score) for score in scores.tolist()], scores)


def _lognormal(normal: NDArray[np.float64], mean: float, deviation: float) -> NDArray[np.float64]:
    """Convert `normal`, standard normal draws, to lognormal sizes with `mean` and, as nearly as possible, `deviation`.

    The deviation of a long tail depends on few draws. So the standard deviation of the logarithms is fitted to these draws,
    within 0.8 to 1.25 times the theoretical sqrt(log(1 + (deviation / mean)**2)).
    """
    expected = np.sqrt(np.log1p((deviation / mean) ** 2))
    low, high = 0.8 * expected, 1.25 * expected
    for _ in range(_FIT_ROUNDS):
        width = (low + high) / 2
        drawn = np.exp(width * normal)
        low, high = (width, high) if drawn.std() / drawn.mean() < deviation / mean else (low, width)
    return np.asarray(mean / drawn.mean() * drawn)


def _clipped_normal(mean: float, deviation: float) -> tuple[float, float]:
    """Return (mean, deviation) of the normal distribution that has `mean` and `deviation` once its negative part is set to 0."""
    scores = _normal_quantiles((np.arange(_GRID) + 0.5) / _GRID)
    centre, width = mean, deviation
    for _ in range(_FIT_ROUNDS):
        clipped = np.maximum(0, centre + width * scores)
        width *= deviation / clipped.std()
        centre += mean - np.maximum(0, centre + width * scores).mean()
    return centre, width
