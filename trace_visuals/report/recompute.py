"""Where the time of computing under a memory budget goes: first computing, recomputing, and the search for what to evict."""

import numpy as np
import pandas as pd

from trace_visuals.bins import Grid, Spread
from trace_visuals.report.analysis import Analysis
from tracing_tools.trace.logs.mllog import read_parts

CURVES = ("base", "recomputed", "search")
_CURVE_OF_PART = {"base_compute": 0, "remat_compute": 1, "search": 2, "cost": 2}
_BINS = 1000


def recompute_shares(analysis: Analysis) -> pd.DataFrame | None:
    """Return `time_ns` (ends of bins) and, for each of CURVES, its share of the ranks' time; None without recompute parts.

    The parts are those that a job under rematerialisation logs: base_compute, remat_compute, search and cost.
    """
    logs = sorted((analysis.trace.path / "logs").glob("*"))
    parts = read_parts(logs, _CURVE_OF_PART)
    if not any(name != "base_compute" for name, *_ in parts):
        return None
    curve, start, duration, rank = np.array([(_CURVE_OF_PART[name], *rest) for name, *rest in parts], dtype=np.int64).T
    grid = Grid.covering(analysis.survey.begin_ns, analysis.survey.end_ns, _BINS)
    spread = Spread(grid, len(CURVES))
    spread.add(curve, start, start + duration, 1.0)
    shares = spread.sums() / (grid.width * len(np.unique(rank)))
    return pd.DataFrame({"time_ns": grid.edges()[1:]} | dict(zip(CURVES, shares, strict=True)))
