"""Fit distributions of compute time, and choose among them by the likelihood of steps left out of the fit."""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
_FOLDS = 5
_KNOTS = 101
LEAST_STEPS = 10  # least number of steps to which a distribution is fitted
_FLOOR = 1e-12  # seconds; least duration of a step, and least width of a distribution


class DistributionFit(NamedTuple):
    """A fitted distribution."""

    name: str
    log_likelihood: float  # mean logarithm of the density (per second) at the steps that the fit left out
    computation_time: dict[str, Any]  # value of the key computation_time in the emulator's YAML
    log_density: Callable[[Values], Values]


def fit_compute_time(seconds: Values) -> list[DistributionFit]:
    """Return normal, lognormal, gamma and empirical distributions fitted to `seconds`, the likeliest first.

    The likelihood is computed on a fifth of the steps, which the fit leaves out, and averaged over five interleaved splits. The
    list is empty if there are fewer than ten steps.
    """
    seconds = np.maximum(np.asarray(seconds, float), _FLOOR)
    if len(seconds) < LEAST_STEPS:
        return []
    fold = np.arange(len(seconds)) % _FOLDS
    fits = []
    for name, candidate in _CANDIDATES.items():
        held_out = [candidate(seconds[fold != index])[1](seconds[fold == index]) for index in range(_FOLDS)]
        document, log_density = candidate(seconds)
        fits.append(DistributionFit(name, float(np.concatenate(held_out).mean()), document, log_density))
    return sorted(fits, key=lambda fit: -fit.log_likelihood)


_Fitted = tuple[dict[str, Any], Callable[[Values], Values]]


def _normal(seconds: Values) -> _Fitted:
    mean, stdev = float(seconds.mean()), max(float(seconds.std()), _FLOOR)
    above_zero = 1 - NormalDist(mean, stdev).cdf(0)  # the emulator cuts the curve at 0

    def log_density(at: Values) -> Values:
        return -0.5 * ((at - mean) / stdev) ** 2 - math.log(above_zero * stdev * math.sqrt(2 * math.pi))

    return {"type": "normal", "mean": mean, "stdev": stdev}, log_density


def _lognormal(seconds: Values) -> _Fitted:
    logs = np.log(seconds)
    centre, width = float(logs.mean()), max(float(logs.std()), 1e-9)
    mean = math.exp(centre + width**2 / 2)
    document = {"type": "lognormal", "mean": mean, "stdev": mean * math.sqrt(math.expm1(width**2))}

    def log_density(at: Values) -> Values:
        return -0.5 * ((np.log(at) - centre) / width) ** 2 - np.log(at * width * math.sqrt(2 * math.pi))

    return document, log_density


def _gamma(seconds: Values) -> _Fitted:
    # The closed approximation of the maximum-likelihood shape (Minka, Estimating a Gamma distribution, 2002), within 1.5 %.
    gap = max(math.log(seconds.mean()) - float(np.log(seconds).mean()), 1e-12)
    shape = (3 - gap + math.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
    scale = float(seconds.mean()) / shape

    def log_density(at: Values) -> Values:
        return (shape - 1) * np.log(at) - at / scale - math.lgamma(shape) - shape * math.log(scale)

    return {"type": "gamma", "shape": shape, "scale": scale}, log_density


def _quantiles(seconds: Values) -> _Fitted:
    """Fit a density that is constant between quantiles. The exponential tails together have the probability 1 / (n + 1)."""
    knots = min(_KNOTS, max(5, len(seconds) // 5))
    values = np.quantile(seconds, np.linspace(0, 1, knots))
    width = max(float(values[-1] - values[0]) / knots, _FLOOR)
    outside = 1 / (len(seconds) + 1)
    # Equal quantiles would give an infinite density, so a bin is at least a tenth as wide as the mean bin.
    densities = (1 - outside) / (knots - 1) / np.maximum(np.diff(values), width / 10)

    def log_density(at: Values) -> Values:
        inside = np.log(densities)[np.clip(np.searchsorted(values, at, side="right") - 1, 0, knots - 2)]
        beyond = np.maximum(values[0] - at, at - values[-1])
        return np.where(beyond > 0, math.log(outside / 2 / width) - beyond / width, inside)

    return {"type": "quantiles", "values": values.tolist()}, log_density


_CANDIDATES: dict[str, Callable[[Values], _Fitted]] = {
    "normal": _normal,
    "lognormal": _lognormal,
    "gamma": _gamma,
    "quantiles": _quantiles,
}
