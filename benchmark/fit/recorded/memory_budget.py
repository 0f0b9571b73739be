"""The step time of a job that trained under a memory budget, or that logged what memory budgets would cost.

Such a job (`python -m iotwin.workloads.dtr`) logs how long each step computed, recomputed, and searched for tensors to evict. If
it also logs a simulation of other budgets, the twin can predict step times for these.
"""

import math
from typing import NamedTuple

from iotwin.benchmark.fit.traced_job import Job
from iotwin.common.mllog import SIMULATED_BUDGETS
from iotwin.common.units import format_size
from iotwin.workload_yaml import Rematerialized

_PARTS = ("base_compute", "remat_compute", "search", "cost")
_STEP = "all_compute"
_LIMIT = 1 << 62  # logged numbers must be below it
_LEAST = 0.02  # share of a step: if the prediction for the recorded budget is smaller, it cannot be a reference for others


class BudgetedStep(NamedTuple):
    """The median step of a job: seconds in all, of computing, of recomputing, and of choosing what to evict."""

    whole_s: float
    base_s: float
    repeated_s: float
    search_s: float

    @property
    def rest_s(self) -> float:
        """The rest of the step, mostly Python's time for each operation."""
        return max(self.whole_s - self.base_s - self.repeated_s - self.search_s, 0.0)


class _Simulated(NamedTuple):
    """A simulated step under a budget: the time and number of the operations that run again, and evictions."""

    budget_bytes: int
    repeated_ns: int
    repeated: int
    evictions: int


def budgeted_step(job: Job) -> BudgetedStep | None:
    """Return the median step of the job; None if the job does not log what it recomputes, or logs no time."""
    parts = job.trace.step_parts()
    if parts is None:
        return None
    rows = parts[parts["name"].isin((*_PARTS, _STEP))].dropna(subset=["epoch", "step"])
    if not set(_PARTS) | {_STEP} <= set(rows["name"].astype(str)):
        return None
    seconds = rows.astype({"name": str}).pivot_table("duration_ns", ["rank", "epoch", "step"], "name", "sum").median() / 1e9
    base, repeated, *search = (float(seconds[name]) for name in _PARTS)
    whole = float(seconds[_STEP])
    return BudgetedStep(whole, base, repeated, sum(search)) if whole > 0 else None


def rematerialized_time(job: Job, step: BudgetedStep, computation_s: float) -> Rematerialized | None:
    """Return the step time of the twin. Under the job's own budget, it is `computation_s`.

    Returns None if the job had no budget and did not simulate any.
    """
    budget, simulated = _number(job, "memory_budget"), _simulated(job)
    operations, operations_ns = _number(job, "step_operations"), _number(job, "step_operations_ns")
    if not simulated or not operations or not operations_ns:
        if budget is None:
            return None
        plain_s = max(step.base_s + step.rest_s, 1e-9)
        growth = round(max(step.whole_s / plain_s, 1.0), 6)
        return Rematerialized(
            base=round(computation_s / growth, 9), curve=[(1.0, growth)], peak_bytes=budget, budget=budget, simulated=False
        )
    own = next((each for each in simulated if each.budget_bytes == budget), simulated[0]._replace(repeated=0, evictions=0))
    python_s = step.rest_s / (operations + own.repeated)
    search_s = step.search_s / own.evictions if own.evictions else 0.0
    plain_s = max(step.base_s + python_s * operations, 1e-9)

    def added(each: _Simulated) -> float:
        """Return the predicted growth of a step, as a share of a step without recomputation."""
        repeated_s = step.base_s * each.repeated_ns / operations_ns
        return (repeated_s + python_s * each.repeated + search_s * each.evictions) / plain_s

    measured = max(step.whole_s / plain_s - 1, 0.0)
    scale = measured / added(own) if added(own) > _LEAST else 1.0
    peak = simulated[0].budget_bytes
    curve = {each.budget_bytes: round(1 + scale * added(each), 6) for each in simulated}
    growth = 1.0
    if budget is not None and budget < peak:
        growth = curve[budget] = round(1 + measured, 6)
    return Rematerialized(
        base=round(computation_s / growth, 9),
        curve=[(math.floor(1e6 * limit / peak) / 1e6, curve[limit]) for limit in sorted(curve, reverse=True)],
        peak_bytes=peak,
        budget=budget,
    )


def describe_budget(time: Rematerialized, step: BudgetedStep) -> str:
    """Return in words what a step spends on a memory budget, and which budgets the twin can predict."""
    limit = "no memory budget" if time.budget is None else f"a memory budget of {format_size(time.budget)}"
    spent = f"{step.repeated_s / step.whole_s:.1%} computing again, {step.search_s / step.whole_s:.1%} searching what to evict"
    if not time.simulated:
        return f"{limit}: {spent}; the job logged no operations, so that other budgets cannot be predicted"
    least = time.curve[-1][0] * time.peak_bytes
    return f"{limit}: {spent}; predicts budgets of {format_size(least)} to {format_size(time.peak_bytes)}"


def _number(job: Job, key: str) -> int | None:
    value = job.logged.get(key)
    return value if type(value) is int and 0 < value < _LIMIT else None


def _simulated(job: Job) -> list[_Simulated]:
    """Return the simulated budgets that the job logged, the largest first; none if the log's line is missing or damaged."""
    try:
        rows = [_Simulated(*map(int, word.split(","))) for word in str(job.logged.get(SIMULATED_BUDGETS, "")).split()]
    except (TypeError, ValueError):
        return []
    are_sound = all(min(each) >= 0 and each.budget_bytes and max(each) < _LIMIT for each in rows)
    return sorted(rows, reverse=True) if are_sound else []
