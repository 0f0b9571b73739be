"""Predicts what other memory budgets would cost a training job, from the operations of one of its steps."""

from collections.abc import Sequence
from pathlib import Path

from iotwin.common.files import write_whole
from iotwin.common.mllog import SIMULATED_BUDGETS, MlLog
from iotwin.workloads.dtr.simulator.heuristics import heuristic_named
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.simulate import UNLIMITED, SimulatedRun, SimulationSettings, simulate

_SHARES = 40  # budgets that are simulated, between all memory and none
_LIMIT = 4.0  # a simulation ends if all operations take longer than this multiple of the time without recomputation


def log_other_budgets(lines: Sequence[bytes], path: Path, heuristic: str, budget: int | None, log: MlLog) -> None:
    """Write the operations of a step to `path`. Log the simulated costs of budgets down to the smallest one that is possible.

    `budget`: the job's own, which is one of these budgets; None if it has none.
    """
    write_whole(path, b"".join(lines))
    graph, rule = read_log(path).graph, heuristic_named(heuristic)

    def run(limit: int) -> SimulatedRun:
        return simulate(graph, SimulationSettings(rule, limit, overhead_limit=_LIMIT))

    peak = run(UNLIMITED).peak
    found = []
    wanted = {round(peak * share / _SHARES) for share in range(1, _SHARES + 1)} | ({budget} if budget else set())
    for limit in sorted((each for each in wanted if each <= peak), reverse=True):
        outcome = run(limit)
        if outcome.result == "pass":
            found.append(f"{limit},{outcome.remat_compute},{outcome.rematerializations},{outcome.evictions}")
        elif budget is None or limit <= budget:
            break
    log.point("step_operations", int((graph.op_constant == 0).sum()))
    log.point("step_operations_ns", graph.compute_ns())
    log.point(SIMULATED_BUDGETS, " ".join(found))
