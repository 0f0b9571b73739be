"""Simulates the chain of the DTR paper's theory: n operations forward and n backward, with unit costs and tensors of size 1."""

import math
import re
from typing import Any

from iotwin.common.errors import UsageError
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


def chain_budget(text: str, layers: int) -> int:
    """Return the budget in tensors: `text` is a number or a function of `layers` like `2sqrt`. Else raises UsageError."""
    if re.fullmatch(r"[0-9]+", text):
        return int(text)
    name = _SAME.get(text, text)
    if name not in BOUNDS:
        raise UsageError(f"unknown budget '{text}'; give a number or one of {', '.join([*BOUNDS, *_SAME])}")
    return int(BOUNDS[name](layers))


def run_chain(layers: int, budget: str, heuristic: Heuristic, limit: float = math.inf, seed: int = 0) -> dict[str, Any]:
    """Simulate a chain. Return the outcome as a JSON object, with the recomputed operations and the metadata accesses."""
    tensors = chain_budget(budget, layers)
    run = simulate(unit_chain(layers), SimulationSettings(heuristic, tensors, overhead_limit=limit, seed=seed))
    return {
        "layers": layers,
        "budget": tensors,
        "bound": budget,
        "heuristic": heuristic.name,
        "result": run.result,
        "remat_ops": run.rematerializations,
        "model_ops": 2 * layers,
        "extra_per_layer": run.rematerializations / layers if run.result == "pass" else None,
        "accesses": run.accesses,
    }


def theory_lines(layers: list[int]) -> dict[str, list[float]]:
    """Return, for each of the rules "Chen" and "Treeverse", how often operations are repeated in theory, one number per length n.

    `layers` lists the lengths. The number is n for Chen's rule, and T(n) = n/2 + 2 T(n/2) with T(1) = 2 for Treeverse.
    """

    def treeverse(n: float) -> float:
        return 2.0 if n <= 1 else n / 2 + 2 * treeverse(n / 2)

    return {"Chen": [float(n) for n in layers], "Treeverse": [treeverse(n) for n in layers]}
