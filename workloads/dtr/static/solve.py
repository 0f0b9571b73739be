"""The static planners by name. Each returns its cheapest schedule under a budget, verified by a replay."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from iotwin.common.errors import UsageError, nearest
from iotwin.workloads.dtr.simulator.heuristics import heuristic_named
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, simulate
from iotwin.workloads.dtr.static import baselines
from iotwin.workloads.dtr.static.milp import solve
from iotwin.workloads.dtr.static.planner_graph import Dag, to_graph
from iotwin.workloads.dtr.static.schedule import COMPUTE, FREE, Instruction, Stages, cheapest_stages, instructions, verify

_ROUNDING_SHARE = 0.9


@dataclass(frozen=True)
class RematerializationPlan:
    """A planner's result. `bound` is a proven lower bound of the cost of any plan, None if the planner proves none.

    `verified` is True if a replay of the schedule fits into the budget.
    """

    solver: str
    budget: int
    status: str
    cost: int | None = None
    peak: int | None = None
    bound: float | None = None
    seconds: float = 0.0
    verified: bool = False
    schedule: tuple[Instruction, ...] = ()

    def document(self, base_cost: int, fixed_bytes: int) -> dict[str, Any]:
        """Return the result as a JSON document. Its budget and peak include `fixed_bytes`, which are always in memory."""
        return {
            "solver": self.solver,
            "budget": self.budget + fixed_bytes,
            "status": self.status,
            "cost": self.cost,
            "peak_bytes": None if self.peak is None else self.peak + fixed_bytes,
            "cost_over_checkpoint_all": None if self.cost is None else self.cost / max(base_cost, 1),
            "bound": self.bound,
            "seconds": round(self.seconds, 3),
            "verified": self.verified,
        }


def _plan(dag: Dag, solver: str, budget: int, kept: Stages) -> RematerializationPlan:
    schedule = tuple(instructions(dag, *cheapest_stages(dag, kept)))
    return _checked(dag, RematerializationPlan(solver, budget, "feasible", schedule=schedule))


def _checked(dag: Dag, plan: RematerializationPlan) -> RematerializationPlan:
    verdict = verify(dag, plan.schedule)
    if verdict.fault is not None:
        raise RuntimeError(f"the schedule of {plan.solver} is invalid: {verdict.fault}")
    return replace(plan, cost=verdict.cost, peak=verdict.peak, verified=verdict.peak <= plan.budget)


def _cheapest(dag: Dag, solver: str, budget: int, candidates: Iterable[Stages]) -> RematerializationPlan:
    """Return the cheapest fitting plan of the `candidates`; if none fits, an 'infeasible' plan with their lowest peak."""
    best, least = None, None
    for kept in candidates:
        plan = _plan(dag, solver, budget, kept)
        if plan.verified and (best is None or _order(plan) < _order(best)):
            best = plan
        least = plan.peak if least is None or plan.peak is None else min(least, plan.peak)
    return best or RematerializationPlan(solver, budget, "infeasible", peak=least)


def _order(plan: RematerializationPlan) -> tuple[int, int]:
    return plan.cost or 0, plan.peak or 0


def _integer(dag: Dag, budget: int, time_limit: float, seed: int) -> RematerializationPlan:
    found = solve(dag, budget, time_limit)
    plan = RematerializationPlan("ilp", budget, found.status, bound=found.bound)
    if found.kept is None:
        return plan
    made = _plan(dag, "ilp", budget, found.kept > 0.5)
    return replace(made, status=found.status, bound=found.bound)


def _bound(dag: Dag, budget: int, time_limit: float, seed: int) -> RematerializationPlan:
    found = solve(dag, budget, time_limit, relaxed=True)
    return RematerializationPlan("lp-bound", budget, found.status, bound=found.cost)


def _rounded(dag: Dag, budget: int, time_limit: float, seed: int) -> RematerializationPlan:
    found = solve(dag, int(budget * _ROUNDING_SHARE), time_limit, relaxed=True)
    if found.kept is None:
        return RematerializationPlan("lp-round", budget, found.status)
    return _cheapest(dag, "lp-round", budget, baselines.rounded_plans(found.kept, seed))


def _dynamic(dag: Dag, budget: int, name: str, seed: int) -> RematerializationPlan:
    """Run the simulator with the heuristic `name`, and return its computations and evictions as a static schedule."""
    solver, graph = f"dtr:{name}", to_graph(dag)
    run = simulate(graph, SimulationSettings(heuristic_named(name), budget, overhead_limit=float("inf"), seed=seed, events=True))
    if run.result != "pass" or run.events is None:
        return RematerializationPlan(solver, budget, "infeasible")
    from iotwin.workloads.dtr.simulator.telemetry import KINDS

    words = {"compute": COMPUTE, "recompute": COMPUTE, "evict": FREE, "free": FREE}
    kinds = [words.get(KINDS[kind]) for kind in run.events.kind.tolist()]
    schedule = tuple((what, ident) for what, ident in zip(kinds, run.events.ident.tolist(), strict=True) if what)
    plan = _checked(dag, RematerializationPlan(solver, budget, "feasible", schedule=schedule))
    if (plan.peak, plan.cost) != (run.peak, run.clock - 1):
        raise RuntimeError(
            f"{solver}: the simulator reports {run.peak} and {run.clock - 1}, its schedule has {plan.peak} and {plan.cost}"
        )
    return plan


def _rule(name: str, stages: Callable[[Dag], Iterable[Stages]]) -> Callable[[Dag, int, float, int], RematerializationPlan]:
    return lambda dag, budget, time_limit, seed: _cheapest(dag, name, budget, stages(dag))


def _all_forward(dag: Dag) -> list[int]:
    return list(range(dag.forward))


def _one(stages: Callable[[Dag], Stages]) -> Callable[[Dag], Iterable[Stages]]:
    return lambda dag: [stages(dag)]


RULES: dict[str, Callable[[Dag], Iterable[Stages]]] = {
    "chen-sqrt": _one(lambda dag: baselines.keep_checkpoints(dag, baselines.sqrt_checkpoints(dag.separators()))),
    "chen-sqrt-linear": _one(lambda dag: baselines.keep_checkpoints(dag, baselines.sqrt_checkpoints(_all_forward(dag)))),
    "chen-greedy": lambda dag: baselines.greedy_plans(dag, dag.separators()),
    "chen-greedy-linear": lambda dag: baselines.greedy_plans(dag, _all_forward(dag)),
    "griewank": lambda dag: baselines.griewank_plans(dag, dag.separators()),
    "checkpoint-all": _one(baselines.keep_all),
    "checkpoint-all-ap": _one(lambda dag: baselines.keep_checkpoints(dag, dag.separators())),
    "checkpoint-last": _one(baselines.keep_last),
}
SOLVERS: dict[str, Callable[[Dag, int, float, int], RematerializationPlan]] = {
    "ilp": _integer,
    "lp-bound": _bound,
    "lp-round": _rounded,
    **{name: _rule(name, stages) for name, stages in RULES.items()},
}
ALL = (*SOLVERS, "dtr:DTR", "dtr:DTREqClass", "dtr:DTRLocal", "dtr:LRU")


def check_solver(name: str) -> str:
    """Return `name`. Raises UsageError if there is no such solver."""
    if name.startswith("dtr:"):
        heuristic_named(name[4:])
    elif name not in SOLVERS:
        raise UsageError(f"unknown solver '{name}'{nearest(name, [*SOLVERS])}; known: {', '.join(SOLVERS)}, dtr:HEURISTIC, all")
    return name


def plan(dag: Dag, solver: str, budget: int, time_limit: float = 60.0, seed: int = 0) -> RematerializationPlan:
    """Return a planner's plan under a budget in bytes (without `dag.fixed_bytes`). Raises UsageError for an unknown solver."""
    begin = time.perf_counter()
    if solver.startswith("dtr:"):
        found = _dynamic(dag, budget, heuristic_named(solver[4:]).name, seed)
    else:
        found = SOLVERS[check_solver(solver)](dag, budget, time_limit, seed)
    return replace(found, seconds=time.perf_counter() - begin)


def lower_bound(dag: Dag) -> int:
    """Return a lower bound, in bytes, of any schedule's memory: the most that a node's result and arguments need together."""
    return max((dag.size[node] + sum(dag.size[arg] for arg in set(dag.args[node])) for node in range(len(dag))), default=0)


def max_batch(dag: Dag, solver: str, memory: int, time_limit: float = 60.0, seed: int = 0) -> int:
    """Return the largest batch size that fits into `memory` bytes at a cost of at most one extra forward pass; 0 if none fits.

    `dag` is the graph for a batch of one sample. Its `fixed_bytes` do not grow with the batch.
    """
    most_cost = sum(dag.cost) + sum(dag.cost[: dag.forward])

    def fits(batch: int) -> bool:
        budget = (memory - dag.fixed_bytes) // batch
        found = plan(dag, solver, budget, time_limit, seed) if budget >= lower_bound(dag) else None
        return found is not None and found.cost is not None and found.verified and found.cost <= most_cost

    if not fits(1):
        return 0
    low, high = 1, 2
    while fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
