"""Quantiles of the gamma distribution, in plain arithmetic: nothing else here would need SciPy."""

import math
from statistics import NormalDist

_PRECISE = 1e-12
_MOST_STEPS = 200


def gamma_cdf(shape: float, x: float) -> float:
    """Return the probability of a value of at most `x` (scale 1): the series of the incomplete gamma function.

    Abramowitz and Stegun, Handbook of Mathematical Functions, 6.5.29.
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
    """Return the value (scale 1) that is not passed with `probability`, which is above 0 and below 1.

    Newton's method within a bracket, from the approximation of Wilson and Hilferty (The distribution of chi-square, 1931), or
    from the series' first term where that has no positive value.
    """
    cube = 1 - 1 / (9 * shape) + NormalDist().inv_cdf(probability) / (3 * math.sqrt(shape))
    x = shape * cube**3 if cube > 0.1 else math.exp((math.log(probability) + math.lgamma(shape + 1)) / shape)
    low, high = 0.0, math.inf
    for _ in range(_MOST_STEPS):
        excess = gamma_cdf(shape, x) - probability
        low, high = (low, x) if excess > 0 else (x, high)
        density = math.exp((shape - 1) * math.log(x) - x - math.lgamma(shape)) if x > 0 else 0.0
        following = x - excess / density if density > 0 else math.inf
        if not low < following < high:
            following = (low + high) / 2 if high < math.inf else 2 * x + 1
        if abs(following - x) <= _PRECISE * max(x, _PRECISE):
            break
        x = following
    return x
