"""How long calls take: reported beside the likeness but no part of it, since it belongs to the storage and not to the job."""

from typing import Any

from tracesim.calls import GROUPS
from tracesim.dimensions import HALF_WIDTH
from tracesim.logbins import quantile
from tracesim.measures import overlap
from tracesim.profile import Profile


def latency(a: Profile, b: Profile) -> dict[str, dict[str, Any]]:
    """Return for each operation in either trace the likeness of the durations and their median and 99th percentile in ns."""
    result = {}
    for group, name in enumerate(GROUPS):
        of_a, of_b = a.latency[group], b.latency[group]
        if of_a.any() or of_b.any():
            result[name] = {
                "score": overlap(of_a, of_b, HALF_WIDTH),
                "a": {"median_ns": quantile(of_a, 0.5), "p99_ns": quantile(of_a, 0.99)},
                "b": {"median_ns": quantile(of_b, 0.5), "p99_ns": quantile(of_b, 0.99)},
            }
    return result
