"""Step times under a memory budget: a base time multiplied by the overhead of recomputation, which a curve maps to budgets."""

from typing import Any

import msgspec

from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Duration, Exponential, Gamma, InOrder, Lognormal, Normal, Quantiles, Rematerialized, Uniform

_SCALED = {"mean", "stdev", "min", "max", "scale", "values"}


def share_of_peak(time: Rematerialized) -> float | None:
    """Return the budget as a share of peak memory; None if there is no budget. In the YAML, a budget above 1 is in bytes."""
    if time.budget is None:
        return None
    return float(time.budget) if time.budget <= 1 else time.budget / time.peak_bytes


def overhead(time: Rematerialized) -> float:
    """Return the overhead, that is, the step time divided by the base time. It is 1 if nothing is recomputed.

    The curve's largest share of memory within the budget determines it. Raises UsageError if the budget is below every share (the
    message names the smallest one), or if the budget is unknown.
    """
    share = share_of_peak(time)
    if not time.simulated and share is not None and all(abs(ratio - share) > 1e-6 for ratio, _ in time.curve):
        raise UsageError(
            f"what a memory budget of {share * time.peak_bytes:.0f} bytes costs is unknown, as the job logged no operations; "
            f"its own was {', '.join(f'{ratio * time.peak_bytes:.0f}' for ratio, _ in time.curve)} bytes; run the job with "
            "--operations FILE, and fit its trace again"
        )
    if share is None or share >= 1 > max(ratio for ratio, _ in time.curve):
        return 1.0
    feasible = [(ratio, cost) for ratio, cost in time.curve if ratio <= share * (1 + 1e-9)]
    if not feasible:
        least = min(ratio for ratio, _ in time.curve)
        raise UsageError(
            f"no schedule meets a memory budget of {share:.3g} of the peak; the least feasible one is {least:g} of it, "
            f"{int(least * time.peak_bytes)} bytes"
        )
    return max(feasible)[1]


def rematerialized(time: Rematerialized) -> Duration:
    """Return the base time multiplied by the overhead. Raises UsageError if the base is a distribution that cannot be scaled."""
    factor, base = overhead(time), time.base
    if isinstance(base, int | float):
        return base * factor
    if not isinstance(base, Normal | Uniform | Gamma | Exponential | Lognormal | Quantiles | InOrder):
        raise UsageError("the base of a rematerialized step time is a number, or a distribution but poisson and recorded")
    grown: dict[str, Any] = {
        name: [value * factor for value in old] if isinstance(old, list) else old * factor
        for name, old in msgspec.structs.asdict(base).items()
        if name in _SCALED
    }
    return msgspec.structs.replace(base, **grown)


def facts(time: Any) -> dict[str, Any] | None:
    """Return budget_bytes, overhead and recompute_share of a Rematerialized `time`, for summaries; None for other step times."""
    if not isinstance(time, Rematerialized):
        return None
    factor, share = overhead(time), share_of_peak(time)
    budget = None if share is None else int(share * time.peak_bytes)
    return {"budget_bytes": budget, "overhead": factor, "recompute_share": 1 - 1 / factor}
