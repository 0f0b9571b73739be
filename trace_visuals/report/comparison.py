"""Compare the traces of a report: the scores of `tracesim`, and the curves of both traces from which each score is computed."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.trace_store.parallel_fold import Workers
from iotwin.trace_store.reader import Trace
from iotwin.tracesim.difference_sentences import with_names
from iotwin.tracesim.dimensions import Curve
from iotwin.tracesim.similarity import Dimension, compare
from iotwin.tracesim.verdict.equivalence_sentences import sentences_of_test

_MOST_POINTS = 400


def comparison_documents(
    traces: list[Trace], labels: list[str], workers: Workers | None = None, repeats: Sequence[Trace] = ()
) -> list[dict[str, Any]]:
    """Return the comparison of the first trace with each other trace. If one fails, its document holds the error.

    `repeats`: traces of reruns of the first trace's job.
    """
    pairs = list(zip(traces[1:], labels[1:], strict=True))
    found = [{"a": labels[0], "b": label} | _document(traces[0], trace, workers, repeats) for trace, label in pairs]
    return [one | {"headline": with_names(one["verdict"], one["a"], one["b"])} for one in found]


def _document(a: Trace, b: Trace, workers: Workers | None, repeats: Sequence[Trace]) -> dict[str, Any]:
    try:
        similarity = compare(a, b, repeats, workers)
    except IotwinError as error:
        return {
            "overall": None,
            "verdict": f"not compared: {error}",
            "test": [],
            "differences": [],
            "warnings": [],
            "dimensions": [],
            "controls": [],
            "aspects": [],
        }
    test = similarity.equivalence
    return {
        "overall": similarity.overall,
        "verdict": similarity.verdict,
        "differences": list(similarity.differences),
        "test": sentences_of_test(test.to_document()) if test else [],
        "warnings": list(similarity.warnings),
        "dimensions": [_dimension(dimension) for dimension in similarity.dimensions],
        "controls": [[c.name, c.overall, c.distance, c.noticed] for c in test.controls] if test else [],
        "aspects": [[name, aspect["difference"], aspect["margin"]] for name, aspect in test.to_document()["aspects"].items()]
        if test
        else [],
    }


def _dimension(dimension: Dimension) -> dict[str, Any]:
    document = {
        "name": dimension.name,
        "score": dimension.score,
        "weight": dimension.weight,
        "parts": dimension.parts,
        "x_unit": dimension.x_unit,
        "unit": dimension.unit,
        "differences": list(dimension.differences),
    }
    curves = (dimension.curve_a, dimension.curve_b)
    if curves[0].labels or curves[1].labels:
        return document | {"bars": _bars(*curves)}
    return document | {"curves": [_points(curve) for curve in curves]}


def _bars(a: Curve, b: Curve) -> list[list[Any]]:
    """Return [label, value in `a`, value in `b`] for every label of which one value is not 0."""
    values = [dict(zip(curve.labels, map(float, curve.y), strict=True)) for curve in (a, b)]
    labels = dict.fromkeys((*a.labels, *b.labels))
    rows = [[label, values[0].get(label, 0.0), values[1].get(label, 0.0)] for label in labels]
    return [row for row in rows if row[1] or row[2]]


def _points(curve: Curve) -> dict[str, Any]:
    """Return at most _MOST_POINTS points of `curve`, without the constant parts before its first and after its last change."""
    x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
    if not len(y):
        return {"x": [], "y": []}
    moves = np.flatnonzero(np.diff(y))
    first, last = (moves[0], min(moves[-1] + 2, len(y) - 1)) if len(moves) else (0, len(y) - 1)
    kept = np.unique(np.linspace(first, last, _MOST_POINTS).astype(int))
    return {"x": x[kept].tolist(), "y": y[kept].tolist()}
