"""Compares the latency of calls. Latency is not part of the similarity score, since it depends on the storage, not on the job."""

from typing import Any

from iotwin.tracesim.calls import GROUPS
from iotwin.tracesim.dimensions import HALF_WIDTH
from iotwin.tracesim.logbins import quantile
from iotwin.tracesim.measures import overlap
from iotwin.tracesim.profile import TraceProfile


def latency(a: TraceProfile, b: TraceProfile) -> dict[str, dict[str, Any]]:
    """Return, by operation, how similar the durations of calls are, and the median and 99th percentile of each trace."""
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
