"""Draw durations from distributions, with random numbers that are keyed by rank, epoch and step."""

import math
from statistics import NormalDist

import numpy as np

from iotwin.common.numbers.durations import (
    Duration,
    Exponential,
    Gamma,
    InOrder,
    Lognormal,
    Normal,
    Poisson,
    Quantiles,
    Recorded,
    Uniform,
)
from iotwin.common.numbers.gamma import gamma_quantile
from iotwin.common.numbers.keyed import Purpose, generator
from iotwin.common.numbers.recorded_times import read_recording

_SMALLEST = 2.0**-57  # about the smallest probability that a random number of 53 bits yields
_STRATA, _MOST_STRATA = 8, 32
_LARGEST_BELOW_ONE = float(np.nextafter(1.0, 0.0))


def inverse_cdf(duration: Duration, probability: float) -> float:
    """Return the seconds below which a draw from `duration` is with the given `probability` (0..1).

    Quantiles are interpolated linearly between equally spaced probabilities. A normal distribution is truncated at zero, so that
    no probability mass piles up there.
    """
    # A drawn probability may round to 0 or 1, where the inverse of an unbounded distribution is infinite.
    inner = min(max(probability, _SMALLEST), _LARGEST_BELOW_ONE)
    match duration:
        case Quantiles(values):
            position = probability * (len(values) - 1)
            low = min(int(position), len(values) - 1)
            high = min(low + 1, len(values) - 1)
            return values[low] + (position - low) * (values[high] - values[low])
        case Normal(mean, stdev) if stdev > 0:
            curve = NormalDist(mean, stdev)
            below_zero = curve.cdf(0.0)
            of_curve = min(max(below_zero + probability * (1 - below_zero), _SMALLEST), _LARGEST_BELOW_ONE)
            return max(0.0, curve.inv_cdf(of_curve))
        case Normal(mean) | Lognormal(mean, 0.0):
            return mean
        case Lognormal(mean, stdev):
            variance = math.log1p((stdev / mean) ** 2)  # variance of the logarithms; their mean is log(mean) - variance / 2
            return mean * math.exp(math.sqrt(variance) * NormalDist().inv_cdf(inner) - variance / 2)
        case Uniform(least, most):
            return least + probability * (most - least)
        case Exponential(scale):
            return -scale * math.log1p(-inner)
        case Gamma(shape, scale):
            return scale * gamma_quantile(shape, inner)
        case Poisson(lam):
            return float(_poisson_quantile(lam, inner))
        case Recorded(file):
            raise TypeError(f"{file}: a recording is replayed, not drawn from")
        case InOrder():
            raise TypeError("times in order are not drawn")
    return float(duration)


def _poisson_quantile(lam: float, probability: float) -> int:
    count, term = 0, math.exp(-lam)
    total = term
    while total < probability and term > 0:
        count += 1
        term *= lam / count
        total += term
    return count


def even_strata(steps: int) -> int:
    """Return a number of strata, at most 32, by which `steps` can be divided about evenly."""
    return -(-steps // -(-steps // _MOST_STRATA)) if steps else _STRATA


class DrawnTime:
    """A duration that is drawn anew, by inverse transform, for every (rank, epoch, step).

    Draws are stratified (Cochran, Sampling Techniques, 1977, ch. 5). The distribution is divided into `strata` equally probable
    parts. Each run of `strata` consecutive steps draws once from every part, in random order. Every single draw has the specified
    distribution, but sums vary less than sums of independent draws. So a short twin takes as long as the job.

    `Recorded` times are not drawn but replayed: each rank and epoch starts at a random index. `InOrder` times start at the first.
    """

    def __init__(self, duration: Duration, seed: int, purpose: Purpose, strata: int = _STRATA) -> None:
        self._seed, self._purpose, self._strata = seed, purpose, strata
        self._duration = duration
        self._recording = read_recording(duration.file) if isinstance(duration, Recorded) else None
        self._block: tuple[int, int, int] | None = None
        self._probabilities: list[float] = []

    def seconds(self, rank: int, epoch: int, step: int) -> float:
        """Return the drawn seconds of `step`, a step, sample or file counted from 0. Equal arguments yield equal results."""
        if self._recording is not None:
            first = int(generator(self._seed, self._purpose, rank, epoch).integers(len(self._recording)))
            return float(self._recording[(first + step) % len(self._recording)])
        if isinstance(self._duration, InOrder):
            return self._duration.values[min(step, len(self._duration.values) - 1)]
        if isinstance(self._duration, float | int):
            return float(self._duration)
        block, index = divmod(step, self._strata)
        if self._block != (rank, epoch, block):
            draw = generator(self._seed, self._purpose, rank, epoch, block)
            self._probabilities = ((draw.permutation(self._strata) + draw.random(self._strata)) / self._strata).tolist()
            self._block = (rank, epoch, block)
        return inverse_cdf(self._duration, self._probabilities[index])
