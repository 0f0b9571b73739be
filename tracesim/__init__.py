"""How alike two I/O traces are: dimensions, overall score, noise floor and a verdict in words."""

from tracesim.dimensions import Curve
from tracesim.similarity import Dimension, Similarity, compare, compare_all, score_all

__all__ = ["Curve", "Dimension", "Similarity", "compare", "compare_all", "score_all"]
