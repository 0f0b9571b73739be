"""Scores the similarity of two trace summaries, by dimension and overall."""

from iotwin.tracesim.dimensions import DEFINITIONS
from iotwin.tracesim.measures import weighted_mean
from iotwin.tracesim.profile import Summary


def scores_of(a: Summary, b: Summary) -> dict[str, float]:
    """Return the score in [0, 1] of each dimension that applies to the two summaries."""
    scores = {definition.name: definition.score(a, b) for definition in DEFINITIONS}
    return {name: score.total for name, score in scores.items() if score is not None}


def overall_of(scores: dict[str, float]) -> float:
    """Return the overall score: the weighted mean of the `scores` by dimension."""
    weights = {definition.name: definition.weight for definition in DEFINITIONS}
    return weighted_mean(list(scores.values()), [weights[name] for name in scores])
