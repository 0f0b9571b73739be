"""The shares of time that a job under a memory budget spends on computing, recomputing, and searching what to evict."""

import numpy as np
import pandas as pd

from iotwin.trace_store.logs.mllog import read_parts
from iotwin.trace_visuals.bins import Grid, Spread
from iotwin.trace_visuals.report.analysis import Analysis

_BINS = 1000
CURVES = ("base", "recomputed", "search")
_CURVE_OF_PART = {"base_compute": 0, "remat_compute": 1, "search": 2, "cost": 2}


def recompute_shares(analysis: Analysis) -> pd.DataFrame | None:
    """Return `time_ns` (ends of bins) and, for each of CURVES, its share of the ranks' time; None if nothing is recomputed.

    Such a job logs the parts base_compute, remat_compute, search and cost of its steps.
    """
    parts = read_parts(sorted((analysis.trace.path / "logs").glob("*")), _CURVE_OF_PART)
    if not parts:
        return None
    curve, start, duration, rank = np.array([(_CURVE_OF_PART[name], *rest) for name, *rest in parts], dtype=np.int64).T
    grid = Grid.covering(analysis.survey.begin_ns, analysis.survey.end_ns, _BINS)
    spread = Spread(grid, len(CURVES))
    spread.add(curve, start, start + duration, 1.0)
    shares = spread.sums() / (grid.width * len(np.unique(rank)))
    if not shares[1:].any():
        return None
    return pd.DataFrame({"time_ns": grid.edges()[1:]} | dict(zip(CURVES, shares, strict=True)))
