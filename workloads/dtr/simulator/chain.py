"""Simulates the cases of the DTR paper's theorems, with costs and sizes of 1: training steps of chains, and an adversary."""

import math
import re
from dataclasses import replace
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.simulator import telemetry
from iotwin.workloads.dtr.simulator.graph import Graph, GraphBuilder
from iotwin.workloads.dtr.simulator.heuristics import Heuristic
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, simulate

BOUNDS = {
    "2sqrt": lambda n: math.ceil(2 * math.sqrt(n)),
    "sqrt": lambda n: math.ceil(math.sqrt(n)),
    "4sqrt": lambda n: math.ceil(4 * math.sqrt(n)),
    "6sqrt": lambda n: math.ceil(6 * math.sqrt(n)),
    "8sqrt": lambda n: math.ceil(8 * math.sqrt(n)),
    "log2": lambda n: math.ceil(math.log2(n)),
    "3log2": lambda n: math.ceil(3 * math.log2(n)),
    "n": lambda n: n,
    "n/2": lambda n: math.ceil(n / 2),
    "2ceil_sqrt": lambda n: 2 * math.ceil(math.sqrt(n)),
}
_SAME = {"ceil2sqrt": "2sqrt", "sqrt4": "4sqrt", "sqrt6": "6sqrt", "sqrt8": "8sqrt", "half": "n/2"}


def unit_chain(layers: int) -> Graph:
    """Return a chain's training step. Each backward operation reads the next layer's gradient and the previous activation."""
    builder = GraphBuilder()
    forward: list[int] = []
    for layer in range(layers):
        forward.append(builder.add(f"f{layer}", 1, forward[-1:], [(f"f{layer}", 1, -1)])[0])
    builder.release(forward[-1])
    gradient = builder.add(f"b{layers - 1}", 1, [], [(f"b{layers - 1}", 1, -1)], backward=True)[0]
    for layer in range(layers - 2, -1, -1):
        builder.release(forward[layer])
        args = [*forward[max(layer - 1, 0) : layer], gradient]
        before, gradient = gradient, builder.add(f"b{layer}", 1, args, [(f"b{layer}", 1, -1)], backward=True)[0]
        builder.release(before)
    return builder.build()


def adversary(steps: int, settings: SimulationSettings) -> Graph:
    """Return the graph of Theorem 3.2: from one root, as many chains as tensors fit into memory. Any heuristic recomputes much.

    Each step extends a chain of which the heuristic has no tensor in memory. The graph is shorter if the budget does not suffice.
    """
    chains: list[list[int]] = [[] for _ in range(settings.budget)]
    builder = GraphBuilder()
    root = builder.add("root", 1, [], [("root", 1, -1)])[0]
    builder.pin(root)
    for step in range(steps):
        graph = builder.build()
        run = simulate(graph, replace(settings, overhead_limit=math.inf, events=True))
        if run.result != "pass":
            break
        _, resident = telemetry.replay(graph, run)
        target = next((chain for chain in chains if not resident & set(chain)), min(chains, key=len))
        before = target[-1] if target else root
        target.append(builder.add(f"s{step}", 1, [before], [(f"s{step}", 1, -1)])[0])
    return builder.build()


def chain_budget(text: str, layers: int) -> int:
    """Return the budget in tensors: `text` is a number or a function of `layers` like `2sqrt`. Else raises UsageError."""
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    name = _SAME.get(text, text)
    if name not in BOUNDS:
        raise UsageError(f"unknown budget '{text}'; give a number or one of {', '.join([*BOUNDS, *_SAME])}")
    return int(BOUNDS[name](layers))


def run_chain(
    layers: int, budget: str, heuristic: Heuristic, limit: float = math.inf, *, against: bool = False, residency: bool = False
) -> dict[str, Any]:
    """Simulate a chain of so many layers, or with `against` the adversary's graph of so many steps. Return a JSON object.

    The object has the recomputed operations and the metadata accesses. With `residency`, it also has a matrix with a row for each
    tensor and a column for each unit of time: 1 if the tensor is in memory, else 0.
    """
    tensors = chain_budget(budget, layers)
    settings = SimulationSettings(heuristic, tensors, overhead_limit=limit, events=residency)
    graph = adversary(layers, settings) if against else unit_chain(layers)
    run = simulate(graph, settings)
    return {
        "layers": layers,
        "budget": tensors,
        "bound": budget,
        "heuristic": heuristic.name,
        "result": run.result,
        "remat_ops": run.rematerializations,
        "model_ops": graph.operators,
        "extra_per_layer": run.rematerializations / layers if run.result == "pass" else None,
        "accesses": run.accesses,
        **({"residency": telemetry.residency(graph, run).tolist()} if residency else {}),
    }


def theory_lines(layers: list[int]) -> dict[str, list[float]]:
    """Return, for the rules "Chen" and "Treeverse", the theoretical number of repeated operations for each length n of a chain.

    `layers` lists the lengths. The number is n for Chen's rule, and T(n) = n/2 + 2 T(n/2) with T(1) = 2 for Treeverse.
    """

    def treeverse(n: float) -> float:
        return 2.0 if n <= 1 else n / 2 + 2 * treeverse(n / 2)

    return {"Chen": [float(n) for n in layers], "Treeverse": [treeverse(n) for n in layers]}


def growth(document: dict[str, Any]) -> dict[str, Any]:
    """Return curves for a picture: recomputed operations by length, of the runs that passed and in theory."""
    curves: dict[str, dict[int, float]] = {}
    for run in document["runs"]:
        if run["remat_ops"] and run["result"] == "pass":  # the axis is logarithmic
            curves.setdefault(f"{run['heuristic']}, {run['bound']}", {})[run["layers"]] = run["remat_ops"]
    theory = document.get("theory", {})
    curves |= {name: dict(zip(theory["layers"], theory[name], strict=True)) for name in theory if name != "layers"}
    return {
        "title": "Recomputation in chains",
        "x": {"label": "layers or steps"},
        "y": {"label": "operations computed again", "scale": "log"},
        "series": [{"name": name, "x": list(points), "y": list(points.values())} for name, points in curves.items()],
    }
