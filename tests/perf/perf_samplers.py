"""What the samplers cost: CPU time of one round of samples, as a share of a core at one round a second."""

import statistics
import time

from iotwin.tracing_tools.samplers.machine import MachineSampler
from tests.perf.figures import Figure

_ROUNDS = 300
_BOUND = 0.002  # of one core at 1 Hz


def measure() -> list[Figure]:
    """Measure CPU, memory, disk and pressure together."""
    sampler = MachineSampler(lambda: None)
    costs = []
    for _ in range(_ROUNDS):
        before = time.process_time_ns()
        rows = list(sampler.sample())
        costs.append((time.process_time_ns() - before) / 1e9)
    detail = f"median of {_ROUNDS} rounds, {len(rows)} rows each"
    return [Figure("samplers: share of one core at 1 Hz", statistics.median(costs), _BOUND, detail=detail)]
