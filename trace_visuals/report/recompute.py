"""The time that a job under a memory budget spends on computing, recomputing and eviction search, and its memory in use."""

import numpy as np
import pandas as pd

from iotwin.common.mllog import TENSOR_BYTES
from iotwin.common.units import format_size
from iotwin.trace_store.logs.job_log import read_parts, read_points, read_values
from iotwin.trace_store.reader import Trace
from iotwin.trace_visuals.bins import Grid, Spread

CURVES = ("base", "recomputed", "search")
_CURVE_OF_PART = {"base_compute": 0, "remat_compute": 1, "search": 2, "cost": 2}


def recompute_shares(trace: Trace, grid: Grid) -> pd.DataFrame | None:
    """Return `time_ns` (ends of bins) and, for each of CURVES, its share of the ranks' time; None without recomputation.

    Such a job logs the parts base_compute, remat_compute, search and cost of its steps.
    """
    parts = read_parts(sorted((trace.path / "logs").glob("*")), _CURVE_OF_PART)
    if not parts:
        return None
    curve, start, duration, rank = np.array([(_CURVE_OF_PART[name], *rest) for name, *rest in parts], dtype=np.int64).T
    spread = Spread(grid, len(CURVES))
    spread.add(curve, start, start + duration, 1.0)
    shares = spread.sums() / (grid.width * len(np.unique(rank)))
    if not shares[1:].any():
        return None
    return pd.DataFrame({"time_ns": grid.edges()[1:]} | dict(zip(CURVES, shares, strict=True)))


def memory_shares(trace: Trace, grid: Grid) -> tuple[str, pd.DataFrame] | None:
    """Return a title, `time_ns` (ends of bins) and `tensors`: the memory of the job's tensors as a share of its budget.

    Without a budget, the share is relative to the largest memory. Returns None if the job does not log its memory.
    """
    logs = sorted((trace.path / "logs").glob("*"))
    points = read_points(logs, TENSOR_BYTES)
    if not points:
        return None
    times, used = np.array(points, dtype=np.int64).T
    budget = read_values(logs).get("memory_budget")
    limit = budget if type(budget) is int and budget > 0 else int(used.max())
    ends = grid.edges()[1:]
    last = np.searchsorted(times, ends, side="right") - 1
    tensors = np.where((last >= 0) & (ends <= times[-1] + grid.width), used[last], 0) / max(limit, 1)
    whole = format_size(limit)
    return f"memory, of {whole}" if limit != budget else f"budget {whole}", pd.DataFrame({"time_ns": ends, "tensors": tensors})
