"""Checkmate's mixed-integer program (Jain et al., MLSys 2020, equations 2 to 9), solved by HiGHS through scipy."""

import importlib.util
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.static.planner_graph import Dag
from iotwin.workloads.dtr.static.schedule import Stages


@dataclass(frozen=True)
class ProgramSolution:
    """The solver's result. `status` is 'optimal', 'feasible' (time limit), 'timeout' (nothing found) or 'infeasible'.

    `bound` is a lower bound of the cost of any plan. `computed` and `kept` are matrices of shape (stage, node).
    """

    status: str
    cost: float | None
    bound: float | None
    computed: Stages | None
    kept: "np.ndarray[Any, np.dtype[np.float64]] | None"
    seconds: float


class _Program:
    """The variables and constraints of the program.

    As in the paper: R[t, i] and S[t, i] for i < t, FREE[t, edge] for edges to targets up to t, and U[t, k] for k <= t.
    """

    def __init__(self, dag: Dag, budget: int) -> None:
        self.dag, self.count = dag, len(dag)
        lower = self.count * (self.count - 1) // 2
        self.ends = np.array([end for _, end in dag.edges], dtype=np.int64)
        self.free_start = np.cumsum([0, *(int((self.ends <= stage).sum()) for stage in range(self.count))]) + 2 * lower
        self.memory_start = int(self.free_start[-1])
        self.variables = self.memory_start + self.count * (self.count + 1) // 2
        self.by_end: list[list[int]] = [[] for _ in range(self.count)]
        for edge, (_, end) in enumerate(dag.edges):
            self.by_end[end].append(edge)
        self.unit = int(np.gcd.reduce([*dag.size, 0])) or 1
        self.budget = budget // self.unit
        self.lower = lower
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.low: list[float] = []
        self.high: list[float] = []
        self._build()

    def computed(self, stage: int, node: int) -> int:
        return stage * (stage - 1) // 2 + node

    def kept(self, stage: int, node: int) -> int:
        return self.lower + stage * (stage - 1) // 2 + node

    def memory(self, stage: int, node: int) -> int:
        return self.memory_start + stage * (stage + 1) // 2 + node

    def _row(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        row = len(self.low)
        for column, value in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.low.append(low)
        self.high.append(high)

    def _r(self, stage: int, node: int, factor: float) -> tuple[list[tuple[int, float]], float]:
        """Return factor * R[stage, node] as (terms, constant). R[t, t] is the constant 1, since stage t computes node t."""
        return ([], factor) if node == stage else ([(self.computed(stage, node), factor)], 0.0)

    def _build(self) -> None:
        for stage in range(self.count):
            for node in range(stage):
                if stage + 1 < self.count:  # a value can be kept only if it was kept or computed in the stage before
                    terms = [
                        (self.kept(stage + 1, node), 1.0),
                        (self.kept(stage, node), -1.0),
                        (self.computed(stage, node), -1.0),
                    ]
                    self._row(terms, -np.inf, 0.0)
            for low, high in self.dag.edges:  # a stage that computes `high` must compute or keep its argument `low`
                if high <= stage:
                    terms, constant = self._r(stage, high, 1.0)
                    self._row([*terms, (self.computed(stage, low), -1.0), (self.kept(stage, low), -1.0)], -np.inf, -constant)
            self._frees(stage)
            self._memory_rows(stage)

    def _frees(self, stage: int) -> None:
        edges = [edge for edge, end in enumerate(self.ends) if end <= stage]
        for index, edge in enumerate(edges):
            low, high = self.dag.edges[edge]
            terms, constant = self._r(stage, high, -1.0)
            constant += 1.0
            later = [user for user in self.dag.users[low] if high < user <= stage]
            for user in later:
                more, fixed = self._r(stage, user, 1.0)
                terms, constant = terms + more, constant + fixed
            if stage + 1 < self.count:
                terms.append((self.kept(stage + 1, low), 1.0))
            most = 1.0 + len(later) + (stage + 1 < self.count)
            free = int(self.free_start[stage]) + index
            self._row([*terms, (free, 1.0)], 1.0 - constant, np.inf)
            self._row([*terms, (free, most)], -np.inf, most - constant)

    def _memory_rows(self, stage: int) -> None:
        size = [value / self.unit for value in self.dag.size]
        index_of = {edge: index for index, edge in enumerate(edge for edge, end in enumerate(self.ends) if end <= stage)}
        terms, constant = self._r(stage, 0, -size[0])
        terms += [(self.kept(stage, node), -size[node]) for node in range(stage)]
        self._row([(self.memory(stage, 0), 1.0), *terms], -constant, -constant)
        for node in range(1, stage + 1):
            terms, constant = self._r(stage, node, -size[node])
            freed = [(int(self.free_start[stage]) + index_of[e], size[self.dag.edges[e][0]]) for e in self.by_end[node - 1]]
            self._row(
                [(self.memory(stage, node), 1.0), (self.memory(stage, node - 1), -1.0), *terms, *freed], -constant, -constant
            )


def solve(dag: Dag, budget: int, time_limit: float, relaxed: bool = False) -> ProgramSolution:
    """Return the cheapest plan within `budget` bytes. With `relaxed`, solve the linear program, whose cost is a lower bound."""
    if importlib.util.find_spec("scipy") is None:
        raise UsageError("the integer program needs scipy; install iotwin[dtr], or choose another solver")
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import coo_array

    begin = time.perf_counter()
    program = _Program(dag, budget)
    cost = np.zeros(program.variables)
    for stage in range(program.count):
        for node in range(stage):
            cost[program.computed(stage, node)] = dag.cost[node]
    high = np.ones(program.variables)
    high[program.memory_start :] = program.budget
    matrix = coo_array((program.values, (program.rows, program.columns)), shape=(len(program.low), program.variables)).tocsr()
    integral = np.zeros(program.variables)
    if not relaxed:
        integral[: program.memory_start] = 1
    found = milp(
        cost,
        constraints=LinearConstraint(matrix, np.array(program.low), np.array(program.high)),
        integrality=integral,
        bounds=Bounds(np.zeros(program.variables), high),
        options={"time_limit": time_limit, "mip_rel_gap": 0.0},
    )
    return _solution(dag, program, found, time.perf_counter() - begin)


def _solution(dag: Dag, program: _Program, found: Any, seconds: float) -> ProgramSolution:
    base = float(sum(dag.cost))
    if found.x is None:
        return ProgramSolution("infeasible" if found.status == 2 else "timeout", None, None, None, None, seconds)
    kept = np.zeros((program.count, program.count))
    computed = np.eye(program.count, dtype=bool)
    for stage in range(program.count):
        for node in range(stage):
            kept[stage, node] = found.x[program.kept(stage, node)]
            computed[stage, node] = found.x[program.computed(stage, node)] > 0.5
    bound = getattr(found, "mip_dual_bound", None)
    bound = base + (float(bound) if bound is not None else float(found.fun))
    return ProgramSolution(
        "optimal" if found.status == 0 else "feasible", base + float(found.fun), bound, computed, kept, seconds
    )
