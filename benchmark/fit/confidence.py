"""How certain fit is of its values. For counts: how many observations agree. For times: the value's confidence interval."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.common.numbers.confidence import Estimate, mean, quantile
from iotwin.common.units import counted


def agreement(values: Sequence[int]) -> dict[str, Any]:
    """Return the most common of `values`, its share among them (None for a single value), and the number of values."""
    found, counts = np.unique(np.asarray(values, np.int64), return_counts=True)
    if not len(found):
        return {"value": None, "agree": None, "observations": 0}
    return {
        "value": int(found[counts.argmax()]),
        "agree": round(float(counts.max() / counts.sum()), 3) if len(values) > 1 else None,
        "observations": len(values),
    }


def mean_time(times_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return the mean of `times_s` in order of time, its 95 % confidence interval and their number."""
    return _time("mean", mean(times_s), len(times_s))


def median_time(times_s: NDArray[np.float64]) -> dict[str, Any]:
    """Return the median of `times_s`, its 95 % confidence interval and their number."""
    return _time("median", quantile(times_s, 0.5) if len(times_s) else None, len(times_s))


def _time(average: str, found: Estimate | None, observations: int) -> dict[str, Any]:
    if found is None:
        return {"value": None, "low": None, "high": None, "observations": 0}
    bounds = {name: None if bound is None else round(bound, 6) for name, bound in found._asdict().items()}
    return {**bounds, "average": average, "observations": observations}


def describe(entry: dict[str, Any]) -> str:
    """Return `entry`, a result of the functions above, in words."""
    if not entry["observations"]:
        return "unknown"
    if "agree" in entry:
        if entry["agree"] is None:
            return f"{entry['value']}, seen once"
        return f"{entry['value']}, in {entry['agree']:.0%} of {counted(entry['observations'], 'case')}"
    times = counted(entry["observations"], "time")
    if None in (entry["low"], entry["high"]):
        return f"{entry['value']:.6g} s, the {entry['average']} of {times}"
    return f"{entry['value']:.4g} s ({entry['low']:.4g} to {entry['high']:.4g}, 95 %), the {entry['average']} of {times}"
