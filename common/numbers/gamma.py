"""Quantiles of the gamma distribution, without SciPy, as iotwin would need it only for this."""

import math
from statistics import NormalDist

_PRECISE = 1e-14
_CLOSE = 1e-11
_MOST_STEPS = 200
_SMALLEST_LOG = -700.0
_LARGEST = 1 - 1e-11  # because of rounding, gamma_cdf may never reach a probability closer to 1


def gamma_cdf(shape: float, x: float) -> float:
    """Return the probability that a gamma-distributed value (scale 1) is at most `x`.

    The method is the series of the incomplete gamma function (Abramowitz and Stegun, Handbook of Mathematical Functions, 6.5.29).
    """
    if x <= 0:
        return 0.0
    term = total = 1.0
    divisor = shape
    while term > _PRECISE * total:
        divisor += 1
        term *= x / divisor
        total += term
    return min(1.0, total * math.exp(shape * math.log(x) - x - math.lgamma(shape + 1)))


def gamma_quantile(shape: float, probability: float) -> float:
    """Return the value (scale 1) that a gamma-distributed value does not exceed with `probability`, between 0 and 1 exclusive.

    The method is Newton's, within a bracket, on the logarithms of value and probability. It starts at the approximation of Wilson
    and Hilferty (The distribution of chi-square, 1931). If that is not positive, it starts at the first term of the series.
    Values below the smallest float are returned as 0. Probabilities above 1 - 1e-11 count as 1 - 1e-11.
    """
    probability = min(probability, _LARGEST)
    cube = 1 - 1 / (9 * shape) + NormalDist().inv_cdf(probability) / (3 * math.sqrt(shape))
    first_term = (math.log(probability) + math.lgamma(shape + 1)) / shape
    log_value = math.log(shape) + 3 * math.log(cube) if cube > 0.1 else first_term
    low, high = -math.inf, math.inf
    for _ in range(_MOST_STEPS):
        if log_value < _SMALLEST_LOG:
            return 0.0
        value = math.exp(log_value)
        reached = gamma_cdf(shape, value)
        excess = math.log(reached / probability) if reached > 0 else -math.inf
        low, high = (low, log_value) if excess > 0 else (log_value, high)
        slope = math.exp(shape * log_value - value - math.lgamma(shape)) / reached if reached > 0 else 0.0
        # A step changes the value by at most a factor of e: Newton's steps overshoot where the distribution function is flat.
        step = min(max(excess / slope, -1.0), 1.0) if slope > 0 else math.copysign(1.0, excess)
        following = log_value - step
        if abs(step) <= _CLOSE:
            break
        log_value = following if low < following < high else (low + high) / 2
    return math.exp(log_value)
