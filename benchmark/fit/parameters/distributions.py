"""Times of a job as distributions of the YAML: quantiles, times in order, and times that warm up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.workload_yaml import Duration, InOrder, Quantiles

_QUANTILES = 21
_LEAST_STEPS = 4  # of a pass whose times have an order
_EVEN = 0.1  # times that deviate by less than this share of their mean need no order
_BY_CHANCE = 0.2  # at most this share of the variance of times in order is among those of the same step
_WARM_UP = 1.5  # a first value this many times longer than the 95th percentile of the later ones is warm-up


def quantiles(values_s: NDArray[np.float64]) -> Duration:
    """Return the empirical distribution of `values_s` as equally spaced quantiles; a number when all are alike."""
    if len(values_s) == 0:
        return 0.0
    if np.ptp(values_s) < 1e-6:
        return round(float(values_s[0]), 6)
    # More quantiles than values would add nothing.
    values = np.quantile(values_s, np.linspace(0, 1, min(_QUANTILES, len(values_s))))
    if len(values_s) > _QUANTILES:
        # Between the last two quantiles draws are even: one long value among thousands must not make all of them long.
        longest = np.sort(values_s)[-max(len(values_s) // (_QUANTILES - 1), 1) :]
        values[-1] = max(2 * longest.mean() - values[-2], values[-2])
    return Quantiles(values=[round(max(float(value), 0.0), 6) for value in values])


def by_step(passes_s: Sequence[NDArray[np.float64]], steps: int) -> Duration:
    """Return the times of the steps of several passes: in order, where each pass takes as long for the same step; else drawn.

    So evaluations do whose samples come in the same order each time. `steps`: of a pass; the time of the last may not be known.
    """
    values_s = np.concatenate(passes_s)
    if len(passes_s) < 2 or steps < _LEAST_STEPS or any(len(each) not in (steps - 1, steps) for each in passes_s):
        return quantiles(values_s)
    known = min(map(len, passes_s))
    by_pass = np.stack([each[:known] for each in passes_s])
    chance, spread = by_pass.var(axis=0, ddof=1).mean(), by_pass.var()
    if spread < (_EVEN * by_pass.mean()) ** 2 or chance > _BY_CHANCE * spread:
        return quantiles(values_s)
    rest_s = [np.median(values_s)] * (steps - known)
    return InOrder([round(float(value), 6) for value in (*np.median(by_pass, axis=0), *rest_s)])


def warm_up(values_s: NDArray[np.float64]) -> tuple[float | None, NDArray[np.float64]]:
    """Return the first value, if it is unlike the later ones (a framework compiles, or starts threads), and the others."""
    later = values_s[1:]
    if len(later) and values_s[0] > _WARM_UP * np.quantile(later, 0.95):
        return round(float(values_s[0]), 6), later
    return None, values_s
