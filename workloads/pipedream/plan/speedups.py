"""Computes curves of the speed-up over the number of workers, for several bandwidths."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from iotwin.common.errors import UsageError
from iotwin.workloads.pipedream.plan.costs import CostOptions, Costs, Level
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph
from iotwin.workloads.pipedream.plan.optimizer import seconds_by_workers
from iotwin.workloads.pipedream.plan.prepare import folded, prepared_points, without_inputs


def speedups(graph: LayerGraph, options: CostOptions, bandwidths: list[float], fold: bool = True) -> dict[str, Any]:
    """Return a panel for a plot. For each of `bandwidths` in bytes per second, it has two curves over 1, 2, ... workers.

    The curves are the speed-ups of the fastest plan and of data parallelism.
    """
    whole = without_inputs(graph)
    _, points = prepared_points(folded(whole) if fold else whole)
    single, parameters = float(points.seconds[-1]), float(points.parameters[-1])
    if not single:
        raise UsageError(f"{graph.name}: its layers take no time, so a speed-up is undefined")
    machines = options.levels[0].machines
    workers = list(range(1, machines + 1))
    series: list[dict[str, Any]] = []
    for bandwidth in bandwidths:
        at = replace(options, levels=(Level(machines, bandwidth),))
        seconds = seconds_by_workers(points, at)
        parallel = [Costs(replace(at, levels=(Level(count, bandwidth),))).data_parallel(single, parameters) for count in workers]
        found = [single / float(each) if np.isfinite(each) else None for each in seconds]
        series.append({"name": f"pipeline, {bandwidth:.3g} B/s", "x": workers, "y": found})
        series.append({"name": f"data parallel, {bandwidth:.3g} B/s", "x": workers, "y": [single / each for each in parallel]})
    title = Path(graph.name).name
    return {"title": title, "x": {"label": "workers"}, "y": {"label": "speed-up", "unit": "times one worker"}, "series": series}
