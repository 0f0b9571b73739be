"""Converts a plan by stages to a schedule of instructions, and verifies schedules.

A plan is two matrices of shape (stage, node): R marks the nodes that a stage computes, S the values that it keeps from before.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from iotwin.workloads.dtr.static.planner_graph import Dag

Stages = NDArray[np.bool_]  # shape (stage, node); node t is computed for the first time in stage t
COMPUTE, FREE = "compute", "free"
Instruction = tuple[str, int]


@dataclass(frozen=True)
class Verdict:
    """The cost and peak memory of a schedule, measured by a replay. `fault` is None if the schedule is valid."""

    cost: int
    peak: int
    fault: str | None = None


def cheapest_stages(dag: Dag, kept: Stages) -> tuple[Stages, Stages]:
    """Return (R, S) for the values `kept` by a plan: R has the fewest nodes, S is `kept` without unused values.

    A stage computes a node if the next stage keeps its value and this stage did not keep it, or if a computed node reads it.
    """
    count = len(dag)
    kept = np.tril(kept, -1)
    computed = np.eye(count, dtype=bool)
    computed[:-1] |= kept[1:] & ~kept[:-1]
    for stage in range(count):
        for node in range(stage, -1, -1):
            if computed[stage, node]:
                for arg in dag.args[node]:
                    if not kept[stage, arg]:
                        computed[stage, arg] = True
    return computed, _useful(dag, computed, kept)


def _useful(dag: Dag, computed: Stages, kept: Stages) -> Stages:
    kept = kept.copy()
    needed = np.zeros(len(dag), dtype=bool)
    for stage in range(len(dag) - 1, -1, -1):
        needed &= ~computed[stage]
        for node in np.flatnonzero(computed[stage]):
            for arg in dag.args[node]:
                needed[arg] |= not computed[stage, arg]
        kept[stage] &= needed
    return kept


def instructions(dag: Dag, computed: Stages, kept: Stages) -> list[Instruction]:
    """Return the schedule of a plan. A stage frees a value after its last use there, unless the next stage keeps the value."""
    made: list[Instruction] = []
    count = len(dag)
    for stage in range(count):
        after = kept[stage + 1] if stage + 1 < count else np.zeros(count, dtype=bool)
        nodes = [int(node) for node in np.flatnonzero(computed[stage]) if node <= stage and not kept[stage, node]]
        last = {arg: node for node in nodes for arg in (node, *dag.args[node])}
        idle = [int(node) for node in np.flatnonzero(kept[stage]) if node not in last and not after[node]]
        made += [(FREE, node) for node in idle]
        for node in nodes:
            made.append((COMPUTE, node))
            made += [(FREE, arg) for arg in sorted({node, *dag.args[node]}) if last[arg] == node and not after[arg]]
    return made


def verify(dag: Dag, schedule: Sequence[Instruction], budget: int | None = None) -> Verdict:
    """Replay a schedule and return its cost, its peak memory in bytes, and its first fault.

    It must compute every node, though none that is in memory, read and free only values in memory, and fit into the budget.
    """
    resident: set[int] = set()
    seen: set[int] = set()
    memory = peak = cost = 0
    for index, (what, node) in enumerate(schedule):
        if what == FREE:
            if node not in resident:
                return Verdict(cost, peak, f"instruction {index} frees node {node}, which is not resident")
            resident.remove(node)
            memory -= dag.size[node]
            continue
        missing = [arg for arg in dag.args[node] if arg not in resident]
        if missing or node in resident:
            fault = f"without node {missing[0]}" if missing else "though it is resident"
            return Verdict(cost, peak, f"instruction {index} computes node {node} {fault}")
        resident.add(node)
        seen.add(node)
        memory, cost = memory + dag.size[node], cost + dag.cost[node]
        peak = max(peak, memory)
        if budget is not None and memory > budget:
            return Verdict(cost, peak, f"instruction {index} needs {memory} of {budget}")
    unmade = set(range(len(dag))) - seen
    return Verdict(cost, peak, f"node {min(unmade)} is never computed" if unmade else None)
