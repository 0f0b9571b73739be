"""The noise floor: the lowest score between reruns of one job. A twin cannot be expected to score higher."""

import itertools
from collections.abc import Sequence

from iotwin.tracesim.profile import TraceProfile, summarise
from iotwin.tracesim.scores import overall_of, scores_of


def noise_floors(runs: Sequence[TraceProfile]) -> dict[str, float]:
    """Return the lowest score of each dimension, and the lowest "overall" score, among all pairs of runs; empty for one run."""
    summaries = [summarise(run) for run in runs]
    floors: dict[str, float] = {}
    for one, other in itertools.combinations(summaries, 2):
        scores = scores_of(one, other)
        for name, score in {**scores, "overall": overall_of(scores)}.items():
            floors[name] = min(score, floors.get(name, 1.0))
    return floors
