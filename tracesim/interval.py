"""A confidence interval for a score: a block bootstrap whose blocks are the occurrences of phases (epochs, evaluations, ...)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tracesim.profile import Profile, Summary, summarise

_DRAWS = 200
_SEED = 20_240_607
_CONFIDENCE = 0.95


def confidence_interval(a: Profile, b: Profile, score: Callable[[Summary, Summary], float]) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of `score` (Efron 1979, blocks after Kunsch 1989), or None below two epochs in either.

    Each draw takes the same places in both traces, as the occurrences correspond (the first epoch to the first), so that
    identical traces have an interval of no width. The seed is fixed: the interval is a function of the two traces.
    """
    if min(a.trainings, b.trainings) < 2:
        return None
    generator = np.random.default_rng(_SEED)
    scores = []
    for _ in range(_DRAWS):
        positions = generator.random(max(a.occurrences.number, b.occurrences.number))
        scores.append(score(summarise(a, weights_at(a, positions)), summarise(b, weights_at(b, positions))))
    tail = (1.0 - _CONFIDENCE) / 2
    low, high = np.quantile(scores, [tail, 1.0 - tail])
    return float(low), float(high)


def weights_at(profile: Profile, positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how often each occurrence is drawn, `positions` in [0, 1) being where in the sequence of its phase."""
    phase = profile.occurrences.phase
    weights = np.zeros(len(phase))
    for members in (np.flatnonzero(phase == p) for p in np.unique(phase)):
        drawn = members[(positions[: len(members)] * len(members)).astype(np.int64)]
        weights += np.bincount(drawn, minlength=len(phase))
    return weights
