"""Static plans: proven optima, bounds in their order, and schedules that an independent replay accepts."""

import random

import numpy as np
import pytest

from iotwin.workloads.dtr.static import baselines, solve
from iotwin.workloads.dtr.static.griewank import recomputations
from iotwin.workloads.dtr.static.planner_graph import Dag, from_graph, read_dag, to_graph, training_chain, write_dag
from iotwin.workloads.dtr.static.schedule import cheapest_stages, instructions, verify


def random_dag(seed: int, nodes: int = 9) -> Dag:
    draw = random.Random(seed)
    args = [tuple(sorted({max(0, node - 1), draw.randrange(node)})) if node else () for node in range(nodes)]
    return Dag([draw.randint(1, 9) for _ in args], [draw.randint(1, 6) for _ in args], args, nodes // 2 + 1)


@pytest.mark.parametrize(
    ("budget", "optimum", "dtr", "local"),
    [(3, 45, 45, 45), (5, 22, 22, 25), (6, 21, 21, 21), (7, 20, 20, 20), (8, 19, 19, 19), (9, 18, 18, 18), (10, 17, 17, 17)],
)
def test_the_chain_of_eight_has_its_known_optima_and_dtr_is_as_near_as_measured(budget, optimum, dtr, local):
    pytest.importorskip("scipy")
    dag = training_chain(8)
    exact = solve.plan(dag, "ilp", budget)
    assert (exact.status, exact.cost, exact.verified) == ("optimal", optimum, True)
    assert [solve.plan(dag, f"dtr:{name}", budget).cost for name in ("DTR", "DTREqClass", "DTRLocal")] == [dtr, dtr, local]


def held_in_order(dag: Dag, time_limit: float = 600.0) -> int:
    """Hold bound <= optimum <= every rule at three budgets, each plan within its budget; return how many have a schedule."""
    top = solve.plan(dag, "checkpoint-all", 10**6).peak
    low = solve.lower_bound(dag)
    assert top is not None
    feasible = 0
    for budget in {low, (low + top) // 2, top}:
        bound, exact = (solve.plan(dag, solver, budget, time_limit) for solver in ("lp-bound", "ilp"))
        others = [solve.plan(dag, name, budget) for name in (*solve.RULES, "lp-round", "dtr:DTR", "dtr:LRU")]
        found = [plan for plan in others if plan.cost is not None]
        assert all(plan.verified and plan.peak <= budget for plan in found)
        if exact.status == "infeasible":
            assert not found
            continue
        assert exact.cost is not None and bound.bound is not None
        assert bound.bound <= exact.cost + 1e-6
        assert all(exact.cost <= plan.cost for plan in found), (budget, exact, found)
        feasible += 1
    return feasible


@pytest.mark.parametrize("seed", range(20))
def test_relaxed_below_exact_below_every_rule(seed):
    pytest.importorskip("scipy")
    assert held_in_order(random_dag(seed))


def test_a_schedule_with_a_fault_is_refused():
    dag = training_chain(4)
    good = instructions(dag, *cheapest_stages(dag, baselines.keep_all(dag)))
    assert verify(dag, good).fault is None
    assert "frees node" in str(verify(dag, [("free", 0), *good]).fault)
    assert "though it is resident" in str(verify(dag, [good[0], *good]).fault)
    assert "without node" in str(verify(dag, good[1:]).fault)
    assert "never computed" in str(verify(dag, good[:-4]).fault)
    assert "needs 3 of 2" in str(verify(dag, good, 2).fault)


def test_rules_need_less_memory_the_fewer_checkpoints_they_keep():
    dag = training_chain(64)
    peaks = {name: solve.plan(dag, name, 10**6).peak for name in solve.RULES}
    least = {name: solve.plan(dag, name, 0).peak for name in solve.RULES}
    assert peaks["checkpoint-all"] == 66
    assert least["griewank"] < least["chen-greedy"] <= least["chen-sqrt"] < 40
    assert peaks["checkpoint-last"] == 3


def test_separators_are_the_nodes_that_every_path_passes():
    assert Dag([1] * 5, [1] * 5, [(), (0,), (1,), (1, 2), (3,)], 5).separators() == [0, 1, 3, 4]


def test_griewank_s_count_is_the_published_one():
    def brute(length: int, slots: int) -> int:
        if length <= 1:
            return 0
        if slots == 0:
            return length * (length - 1) // 2
        return min(k + brute(length - k, slots - 1) + brute(k, slots) for k in range(1, length))

    assert all(recomputations(n, s) == brute(n, s) for n in range(1, 12) for s in range(4))


def test_graphs_survive_their_document_and_the_simulator_s_form(tmp_path):
    for seed in range(20):
        dag = random_dag(seed)
        (tmp_path / "g.json").write_bytes(write_dag(dag))
        assert read_dag(tmp_path / "g.json") == dag
        back = from_graph(to_graph(dag), 0)
        assert (back.cost, back.size, back.args, back.forward) == (dag.cost, dag.size, dag.args, dag.forward)


def test_the_largest_batch_fits_and_the_next_one_does_not():
    dag = training_chain(16)
    batch = solve.max_batch(dag, "chen-greedy", 64)
    limit = sum(dag.cost) + sum(dag.cost[: dag.forward])
    costs = [solve.plan(dag, "chen-greedy", 64 // b).cost for b in (batch, batch + 1)]
    assert costs[0] is not None and costs[0] <= limit and (costs[1] is None or costs[1] > limit)


def test_rounding_gives_stages_below_the_diagonal_only():
    kept = next(baselines.rounded_plans(np.full((5, 5), 0.7), 0))
    assert not np.triu(cheapest_stages(training_chain(2), kept)[1]).any()
