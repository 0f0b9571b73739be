"""The scores of two summaries: of each dimension that is there, and overall."""

from tracesim.dimensions import DEFINITIONS
from tracesim.measures import weighted_mean
from tracesim.profile import Summary

WEIGHTS = {definition.name: definition.weight for definition in DEFINITIONS}


def scores_of(a: Summary, b: Summary) -> dict[str, float]:
    """Return the score in [0, 1] of each dimension that either summary has something of."""
    scores = {definition.name: definition.score(a, b) for definition in DEFINITIONS}
    return {name: score.total for name, score in scores.items() if score is not None}


def overall_of(scores: dict[str, float]) -> float:
    """Return the weighted mean of the dimensions that are there."""
    return weighted_mean(list(scores.values()), [WEIGHTS[name] for name in scores])
