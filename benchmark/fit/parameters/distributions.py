"""Express the times of a job as distributions of the YAML: quantiles, times in step order, and a separate first time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from iotwin.workload_yaml import Duration, InOrder, Quantiles

_QUANTILES = 21
_LEAST_STEPS = 4  # fewest steps of a pass whose times are stored in step order
_EVEN = 0.1  # times that deviate by less than this share of their mean are not stored in step order
_BY_CHANCE = 0.2  # times are stored in step order if at most this share of their variance is within equal steps
_WARM_UP = 1.5  # a first value this many times longer than the 95th percentile of the later ones is warm-up


def quantiles(values_s: NDArray[np.float64]) -> Duration:
    """Return the distribution of `values_s` as equally spaced quantiles in seconds; one number if all values are alike."""
    if len(values_s) == 0:
        return 0.0
    if np.ptp(values_s) < 1e-6:
        return round(float(values_s[0]), 6)
    # More quantiles than values would add no information.
    values = np.quantile(values_s, np.linspace(0, 1, min(_QUANTILES, len(values_s))))
    if len(values_s) > _QUANTILES:
        # Draws between the last two quantiles are uniform, so the last one is set to give the right mean of the longest values.
        longest = np.sort(values_s)[-max(len(values_s) // (_QUANTILES - 1), 1) :]
        values[-1] = max(2 * longest.mean() - values[-2], values[-2])
    return Quantiles(values=[round(max(float(value), 0.0), 6) for value in values])


def by_step(passes_s: Sequence[NDArray[np.float64]], steps: int) -> Duration:
    """Return the times in step order if the same step takes equally long in all passes; otherwise their quantiles.

    This is so in evaluations that read samples in the same order each time. `steps`: number of steps of a pass. `passes_s` may
    lack the time of the last step.
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


def warm_up(values_s: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
    """Return (how much longer than the median the first value is, the remaining values) in seconds.

    Unless the first value is much longer than all others, returns (0, all values). A framework may compile in its first step.
    """
    later = values_s[1:]
    if len(later) and values_s[0] > _WARM_UP * np.quantile(later, 0.95):
        return round(float(values_s[0] - np.median(later)), 6), later
    return 0.0, values_s


def warm_first(values_s: NDArray[np.float64]) -> Duration:
    """Return the few times in their order if the first one is much longer; otherwise their quantiles."""
    if len(values_s) <= _QUANTILES and warm_up(values_s)[0]:
        return InOrder([round(max(float(value), 0.0), 6) for value in values_s])
    return quantiles(values_s)
