"""What the tests of PipeDream's plan share: the published profiles, and random graphs."""

import random
from itertools import pairwise
from pathlib import Path

from iotwin.workloads.pipedream.plan.costs import CostOptions, Level
from iotwin.workloads.pipedream.plan.graph_file import read_graph
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, LayerNode

DATA = Path(__file__).parent / "data"


def profile(name: str) -> LayerGraph:
    return read_graph(DATA / f"{name}.graph.txt")


def options(machines, bandwidths, **changes) -> CostOptions:
    levels = tuple(Level(*level) for level in zip(machines, bandwidths, strict=True))
    return CostOptions(levels, **{"compression": 1.0, **changes})


def random_graph(seed: int, most: int = 9) -> LayerGraph:
    """A random acyclic graph in which every node is reached from the first; some nodes cost nothing."""
    draw = random.Random(seed)
    count = draw.randint(1, most)
    edges = []
    for target in range(1, count):
        sources = draw.sample(range(target), min(target, draw.choice((1, 1, 1, 2, 3))))
        edges += [(source, target) for source in sources]
    nodes = tuple(
        LayerNode(
            f"node{number}",
            "Layer",
            *(draw.choice((0, 1)) * draw.randint(1, 50) for _ in range(2)),
            float(draw.randint(0, 40)) * 1e6,
            float(draw.choice((0, draw.randint(1, 90)))) * 1e6,
            update_ms=float(seed % 3 * number),
        )
        for number in range(count)
    )
    return LayerGraph(nodes, tuple(edges))


def chain(*times_ms: float) -> LayerGraph:
    nodes = tuple(LayerNode(f"node{number}", "Layer", time, 0.0, 1000.0, 1000.0) for number, time in enumerate(times_ms))
    return LayerGraph(nodes, tuple(pairwise(range(len(nodes)))))
