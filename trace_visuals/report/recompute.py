"""Where the time of computing under a memory budget goes: first computing, recomputing, and the search for what to evict."""

import pandas as pd

from iotwin.trace_visuals.report.analysis import Analysis
from iotwin.trace_visuals.report.part_shares import part_shares

CURVES = ("base", "recomputed", "search")
_CURVE_OF_PART = {"base_compute": 0, "remat_compute": 1, "search": 2, "cost": 2}


def recompute_shares(analysis: Analysis) -> pd.DataFrame | None:
    """Return `time_ns` (ends of bins) and, for each of CURVES, its share of the ranks' time; None without recompute parts.

    The parts are those that a job under rematerialisation logs: base_compute, remat_compute, search and cost.
    """
    shares = part_shares(analysis, CURVES, _CURVE_OF_PART)
    return None if shares is None or not shares[["recomputed", "search"]].to_numpy().any() else shares
