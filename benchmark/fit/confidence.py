"""How sure a fit is of its values. For counts: how many observations agree. For times: the confidence interval of the mean."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.common.numbers.confidence import mean
from iotwin.common.units import counted


def agreement(values: Sequence[int]) -> dict[str, Any]:
    """Return the most common of `values`, the share of them that are equal to it (None for a single value), and their number."""
    found, counts = np.unique(np.asarray(values, np.int64), return_counts=True)
    if not len(found):
        return {"value": None, "agree": None, "observations": 0}
    return {
        "value": int(found[counts.argmax()]),
        "agree": round(float(counts.max() / counts.sum()), 3) if len(values) > 1 else None,
        "observations": len(values),
    }


def interval(times_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean of `times_s` in order of time, its 95 % confidence interval and their number."""
    estimate = mean(times_s)
    if estimate is None:
        return {"value": None, "low": None, "high": None, "observations": 0}
    bounds = {name: None if bound is None else round(bound, 6) for name, bound in estimate._asdict().items()}
    return {**bounds, "observations": len(times_s)}


def describe(entry: dict[str, Any]) -> str:
    """Describe an entry from `agreement` or `interval` in words."""
    if not entry["observations"]:
        return "unknown"
    if "agree" in entry:
        if entry["agree"] is None:
            return f"{entry['value']}, seen once"
        return f"{entry['value']}, in {entry['agree']:.0%} of {counted(entry['observations'], 'case')}"
    if entry["low"] is None:
        return f"{entry['value']:.6g} s, seen once"
    times = counted(entry["observations"], "time")
    return f"{entry['value']:.4g} s in the mean ({entry['low']:.4g} to {entry['high']:.4g}, 95 %) of {times}"
