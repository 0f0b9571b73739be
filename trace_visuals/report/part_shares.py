"""What share of their time the ranks of a job spend in the parts that they log, along the trace."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from iotwin.trace_store.logs.mllog import read_parts
from iotwin.trace_visuals.bins import Grid, Spread
from iotwin.trace_visuals.report.analysis import Analysis

_BINS = 1000


def part_shares(analysis: Analysis, curves: Sequence[str], curve_of_part: Mapping[str, int]) -> pd.DataFrame | None:
    """Return `time_ns` (ends of bins) and, for each of `curves`, its share of the ranks' time; None where no part is logged.

    `curve_of_part` gives the curve (index) that each part, by name, counts for.
    """
    parts = read_parts(sorted((analysis.trace.path / "logs").glob("*")), curve_of_part)
    if not parts:
        return None
    curve, start, duration, rank = np.array([(curve_of_part[name], *rest) for name, *rest in parts], dtype=np.int64).T
    grid = Grid.covering(analysis.survey.begin_ns, analysis.survey.end_ns, _BINS)
    spread = Spread(grid, len(curves))
    spread.add(curve, start, start + duration, 1.0)
    shares = spread.sums() / (grid.width * len(np.unique(rank)))
    return pd.DataFrame({"time_ns": grid.edges()[1:]} | dict(zip(curves, shares, strict=True)))
