"""Measure the similarity of two I/O traces: dimensions, overall score, noise floor and a verdict in words."""

from iotwin.tracesim.dimensions import Curve
from iotwin.tracesim.similarity import Dimension, Similarity, compare, compare_all, score_all

__all__ = ["Curve", "Dimension", "Similarity", "compare", "compare_all", "score_all"]
