"""The latency of calls. It is reported with the score but not part of it, since it depends on the storage, not on the job."""

from typing import Any

from iotwin.tracesim.calls import GROUPS
from iotwin.tracesim.dimensions import HALF_WIDTH
from iotwin.tracesim.logbins import quantile
from iotwin.tracesim.measures import overlap
from iotwin.tracesim.profile import TraceProfile


def latency(a: TraceProfile, b: TraceProfile) -> dict[str, dict[str, Any]]:
    """Return, per operation of either trace, the similarity of call durations, and each trace's median and 99th percentile."""
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
