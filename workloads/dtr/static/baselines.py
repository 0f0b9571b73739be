"""Published rules that choose which values to keep: all, the last, Chen's sqrt and greedy rules, Griewank's schedule, rounding.

In stage t of a plan, node t is computed for the first time. A rule returns a boolean matrix of shape (stage, node). An entry is
True if the stage keeps the node's value from the previous stage.
"""

import math
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from iotwin.workloads.dtr.static.griewank import checkpoints_while_reversing
from iotwin.workloads.dtr.static.planner_graph import Dag
from iotwin.workloads.dtr.static.schedule import Stages

_GREEDY_STEPS = 300


def keep_all(dag: Dag) -> Stages:
    """Return the plan that keeps every value until its last use."""
    kept = np.zeros((len(dag), len(dag)), dtype=bool)
    for node in range(len(dag)):
        kept[node + 1 : dag.last_use(node) + 1, node] = True
    return kept


def keep_last(dag: Dag) -> Stages:
    """Return the plan in which each stage keeps only the value that the previous stage computed first."""
    return np.eye(len(dag), k=-1, dtype=bool)


def keep_checkpoints(dag: Dag, checkpoints: list[int]) -> Stages:
    """Return the plan that always keeps the values of `checkpoints`, and gradients until their last use.

    The forward nodes between two checkpoints form a segment. The backward pass recomputes a segment when it first needs it.
    """
    kept = np.zeros((len(dag), len(dag)), dtype=bool)
    for node in range(dag.forward, len(dag)):
        kept[node + 1 : dag.last_use(node) + 1, node] = True
    for node in checkpoints:
        kept[node + 1 :, node] = True
    for segment in segments(dag, checkpoints):
        for node in segment:
            kept[node + 1 : dag.last_use(node, dag.forward) + 1, node] = True
        entered = min((user for node in segment for user in dag.users[node] if user >= dag.forward), default=len(dag))
        for node in segment:
            kept[entered + 1 : dag.last_use(node) + 1, node] = True
    return kept


def segments(dag: Dag, checkpoints: list[int]) -> list[range]:
    """Return the ranges of forward nodes between consecutive checkpoints, including those before the first and after the last."""
    ends = sorted({*checkpoints, -1, dag.forward})
    return [range(low + 1, high) for low, high in pairwise(ends) if high - low > 1]


def sqrt_checkpoints(candidates: list[int]) -> list[int]:
    """Return every k-th candidate, where k is the square root of their number (Chen et al. 2016, algorithm 2)."""
    step = max(1, math.isqrt(len(candidates)))
    return candidates[step - 1 :: step]


def greedy_checkpoints(dag: Dag, candidates: list[int], threshold: float) -> list[int]:
    """Return candidates with over `threshold` bytes computed since the last checkpoint (Chen et al. 2016, algorithm 3)."""
    chosen, total, allowed = [], 0, set(candidates)
    for node in range(dag.forward):
        total += dag.size[node]
        if node in allowed and total > threshold:
            chosen.append(node)
            total = 0
    return chosen


def greedy_plans(dag: Dag, candidates: list[int]) -> Iterator[Stages]:
    """Yield the distinct plans of the greedy rule for 300 thresholds, up to three times the sqrt rule's activation memory."""
    chosen = sqrt_checkpoints(candidates)
    longest = max((sum(dag.size[node] for node in segment) for segment in segments(dag, chosen)), default=0)
    scale = sum(dag.size[node] for node in chosen) + longest
    seen = set()
    for step in range(_GREEDY_STEPS):
        checkpoints = greedy_checkpoints(dag, candidates, scale * step / 100)
        if tuple(checkpoints) not in seen:
            seen.add(tuple(checkpoints))
            yield keep_checkpoints(dag, checkpoints)


def griewank_plans(dag: Dag, candidates: list[int]) -> Iterator[Stages]:
    """Yield the plans of Griewank's schedule, with more and more memory slots for checkpoints. The first plan has one slot."""
    slots = 1
    while slots <= len(candidates):
        yield keep_moving(dag, candidates, slots)
        slots += 1 if slots < 16 else slots // 4


def keep_moving(dag: Dag, candidates: list[int], slots: int) -> Stages:
    """Return the plan that keeps at most `slots` checkpoints, which move towards the start during the backward pass."""
    kept = np.zeros((len(dag), len(dag)), dtype=bool)
    for node in range(dag.forward, len(dag)):
        kept[node + 1 : dag.last_use(node) + 1, node] = True
    for node in range(dag.forward):
        kept[node + 1 : dag.last_use(node, dag.forward) + 1, node] = True
    held = checkpoints_while_reversing(len(candidates), slots)
    for stage in range(dag.forward):
        for index in held[-1]:
            kept[stage, candidates[index]] |= candidates[index] < stage
    for stage in range(dag.forward, len(dag)):
        needed = max((arg for arg in dag.args[stage] if arg < dag.forward), default=0)
        position = max((index for index, node in enumerate(candidates) if node <= needed), default=0)
        for index in held[position]:
            kept[stage, candidates[index]] = True
    return kept


def rounded_plans(fractions: "np.ndarray[tuple[int, int], np.dtype[np.float64]]", seed: int) -> Iterator[Stages]:
    """Yield plans that round `fractions` (stage, node): by fixed thresholds, random ones, and a random one per entry."""
    draw = np.random.Generator(np.random.Philox(key=seed))
    for threshold in [0.5, *(step / 10 for step in range(1, 10))]:
        yield fractions >= threshold
    for _ in range(10):
        yield fractions >= draw.random()
    for _ in range(10):
        yield fractions > draw.random(fractions.shape)
