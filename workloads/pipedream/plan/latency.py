"""Finds the pipeline with the least latency for inference, if inputs arrive at a fixed interval.

It follows inference_optimizer_graph.py of msr-fiddle/pipedream. No stage may take longer than the interval, and there are no
gradients. The transfer of a stage's output takes out/(B m) seconds (symbols: costs.py), or no time if activations are compressed.
"""

from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.workloads.pipedream.plan.costs import Array, CostOptions, Points, points_of
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, bits
from iotwin.workloads.pipedream.plan.states.antichains import states_of


def optimize_latency(graph: LayerGraph, options: CostOptions, interval_s: float) -> dict[str, Any]:
    """Return the plan with the least latency as ``{"objective", "latency_s", "stage_time_s", "workers", "stages"}``.

    `interval_s` is the time between two inputs. Raises IotwinError if no plan keeps every stage within `interval_s`.
    """
    points = points_of(graph, states_of(graph))
    machines, last = options.levels[0].machines, points.last
    best = np.full((machines + 1, last + 1), np.inf)  # least latency from the start to each point, by number of units
    # (first point, replicas) of the last stage of the plan with the latency in `best`
    came = np.zeros((machines + 1, last + 1, 2), int)
    for end in range(1, last + 1):
        begins = np.flatnonzero(points.reach[:, end])
        for replicas in range(1, (1 if options.straight else machines) + 1):
            added = _added(points, options, begins, end, replicas, interval_s)
            for units in range(replicas, machines + 1):
                before = np.where(begins == 0, 0.0 if units == replicas else np.inf, best[units - replicas, begins])
                total = before + added
                index = int(np.argmin(total))
                if total[index] < best[units, end]:
                    best[units, end], came[units, end] = total[index], (begins[index], replicas)
    units = machines if options.all_workers else int(np.argmin(best[:, last]))
    if not np.isfinite(best[units, last]):
        raise IotwinError(f"no plan on {machines} workers keeps every stage within {interval_s:g} s; give more workers or time")
    return _document(graph, points, best, came, units)


def _added(points: Points, options: CostOptions, begins: np.ndarray, end: int, replicas: int, interval_s: float) -> Array:
    """Return, for each of `begins`, the latency of a stage from there to `end`; infinite if interval or memory is too small."""
    compute = points.forward_s[end] - points.forward_s[begins]
    first = begins == 0
    link = options.levels[0].bandwidth * replicas
    counted = options.compression is None
    entering = np.where(first, 0.0, points.output[begins]) / link * counted
    leaving = np.where(first, 0.0, points.output[end] if end < points.last else 0.0) / link * counted
    slowest = np.maximum(compute / replicas, np.maximum(entering, leaving))
    late = np.where(first, slowest >= interval_s, slowest > interval_s)
    if options.memory_bytes is not None:
        held = (points.activations + points.parameters)[end] - (points.activations + points.parameters)[begins]
        late |= held > options.memory_bytes
    found: Array = np.where(late, np.inf, compute + (entering + leaving) * replicas)
    return found


def _document(graph: LayerGraph, points: Points, best: Array, came: np.ndarray, units: int) -> dict[str, Any]:
    stages: list[dict[str, Any]] = []
    point, left = points.last, units
    while point:
        begin, replicas = (int(each) for each in came[left, point])
        own = points.closures[point] & ~points.closures[begin]
        compute = float(points.forward_s[point] - points.forward_s[begin])
        nodes = [graph.nodes[node].id for node in bits(own)]
        stages.insert(0, {"nodes": nodes, "replicas": replicas, "compute_s": compute})
        point, left = begin, left - replicas
    stages = [{"stage": index, **stage} for index, stage in enumerate(stages)]
    return {
        "objective": "latency",
        "latency_s": float(best[units, points.last]),
        "stage_time_s": max(stage["compute_s"] / stage["replicas"] for stage in stages),
        "workers": units,
        "stages": stages,
    }
