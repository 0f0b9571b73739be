"""A confidence interval for a score, by a block bootstrap over the occurrences of phases (epochs, evaluations, ...)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from iotwin.tracesim.profile import Summary, TraceProfile, summarise

_DRAWS = 200  # bootstrap samples, of which five lie beyond each end of the interval
_SEED = 20_240_607
_CONFIDENCE = 0.95  # share of the samples within the interval


def confidence_interval(
    a: TraceProfile, b: TraceProfile, score: Callable[[Summary, Summary], float]
) -> tuple[float, float] | None:
    """Return the 95 % percentile interval of `score(a, b)`, or None if a trace has fewer than two epochs.

    The bootstrap (Efron 1979, blocks after Kunsch 1989) draws phase occurrences with replacement. Each sample draws the same
    occurrences from both traces, so the interval of two identical traces has width 0. The seed is fixed.
    """
    if min(a.trainings, b.trainings) < 2:
        return None
    generator = np.random.default_rng(_SEED)
    scores = []
    known: dict[bytes, float] = {}  # few occurrences have few samples, most of which are drawn repeatedly
    for _ in range(_DRAWS):
        positions = generator.random(max(a.occurrences.number, b.occurrences.number))
        of_a, of_b = weights_at(a, positions), weights_at(b, positions)
        sample = of_a.tobytes() + of_b.tobytes()
        if sample not in known:
            known[sample] = score(summarise(a, of_a), summarise(b, of_b))
        scores.append(known[sample])
    tail = (1.0 - _CONFIDENCE) / 2
    low, high = np.quantile(scores, [tail, 1.0 - tail])
    return float(low), float(high)


def weights_at(profile: TraceProfile, positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how often a bootstrap sample draws each phase occurrence, shape (occurrences,).

    `positions` are random numbers in [0, 1). A phase with n occurrences uses the first n of them. Each of
    these draws one occurrence of that phase: 0 draws the first occurrence, values near 1 draw the last.
    """
    phase = profile.occurrences.phase
    weights = np.zeros(len(phase))
    for members in (np.flatnonzero(phase == p) for p in np.unique(phase)):
        drawn = members[(positions[: len(members)] * len(members)).astype(np.int64)]
        weights += np.bincount(drawn, minlength=len(phase))
    return weights
