"""Converts an optimised graph to the inputs of a runtime: modules with their tensors, configurations of ranks, and the plan.

PipeDream's convert_graph_to_model.py gives tensors the same names: k in ``out<k>`` counts the edges that leave a stage, so some k
are missing. A stage's tensors are sorted by the id of their node, as a string.
"""

from dataclasses import dataclass
from typing import Any

from iotwin.common.errors import UsageError
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, partition
from iotwin.workloads.pipedream.plan.report import crossing_bytes
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage


@dataclass(frozen=True)
class Converted:
    """The result of a conversion: a graph for each of the `stages`, and more.

    `modules` are documents ``{"name", "inputs", "outputs", "nodes", "kinds"}``; the loss's has no nodes and kinds. `confs` maps
    "dp", "mp" and "hybrid" to a conf.json of PipeDream.
    """

    modules: list[dict[str, Any]]
    confs: dict[str, dict[str, Any]]
    stages: list[LayerGraph]
    plan: PipelinePlan


def parse_ranks(text: str, stages: int) -> list[int]:
    """Return the number of ranks of each stage from a text such as ``0:3,1:1``.

    Raises UsageError if a stage is unknown, missing or repeated.
    """
    found: dict[int, int] = {}
    for pair in text.split(","):
        stage, separator, ranks = pair.partition(":")
        if not (separator and stage.strip().isdigit() and ranks.strip().isdigit() and int(ranks) > 0):
            raise UsageError(f"--stage-to-num-ranks: '{pair}' is not STAGE:RANKS; write for example 0:3,1:1")
        if int(stage) in found or int(stage) >= stages:
            why = "is given twice" if int(stage) in found else f"does not exist; the graph has stages 0 to {stages - 1}"
            raise UsageError(f"--stage-to-num-ranks: stage {int(stage)} {why}")
        found[int(stage)] = int(ranks)
    missing = sorted(set(range(stages)) - found.keys())
    if missing:
        raise UsageError(f"--stage-to-num-ranks: stage {missing[0]} is missing; the graph has stages 0 to {stages - 1}")
    return [found[stage] for stage in range(stages)]


def convert(graph: LayerGraph, ranks: str | None = None) -> Converted:
    """Return the conversion of an optimised graph. `ranks` is a text for `parse_ranks`; None means one rank per stage."""
    whole = graph.without(n for n in graph.sinks() if graph.nodes[n].description.startswith("__getitem__"))
    by_stage = partition(whole)
    if list(by_stage) != list(range(len(by_stage))):
        missing = next(index for index, stage in enumerate(by_stage) if index != stage)
        raise UsageError(f"{graph.name}: no node has stage_id={missing}; number stages from 0 without a gap")
    for source, target in whole.edges:
        a, b = whole.nodes[source], whole.nodes[target]
        if (a.stage or 0) > (b.stage or 0):
            raise UsageError(f"{graph.name}: the edge {a.id} -- {b.id} leads from stage {a.stage} back to stage {b.stage}")
    replicas = [1] * len(by_stage) if ranks is None else parse_ranks(ranks, len(by_stage))
    modules = _modules(whole, len(by_stage))
    plan = _plan(whole, replicas)
    return Converted(modules, _confs(len(modules), plan, ranks is not None), list(by_stage.values()), plan)


def _modules(graph: LayerGraph, stages: int) -> list[dict[str, Any]]:
    """Return a module for each stage, with the names of its input and output tensors, and then the loss's module "criterion"."""
    names = {node.id: f"input{k}" for k, node in enumerate(n for i, n in enumerate(graph.nodes) if graph.nodes[i].is_input)}
    found = []
    counter = 0
    for stage in range(stages):
        own = [index for index, node in enumerate(graph.nodes) if node.stage == stage]
        inputs = _inputs(graph, own)
        outputs = []
        for number in own:
            node = graph.nodes[number]
            leaving = sum(graph.nodes[target].stage != stage for target in graph.successors[number])
            if node.description.startswith("hidden"):
                leaving = 0
            elif not graph.successors[number]:
                leaving = 1
            if leaving:
                counter += leaving
                outputs.append((node.id, f"out{counter - 1}"))
        entering = [names[name] for name in sorted(inputs)]
        names |= dict(outputs)
        layers = {"nodes": [graph.nodes[each].id for each in own], "kinds": [graph.nodes[each].kind for each in own]}
        found.append(
            {"name": f"Stage{stage}", "inputs": entering, "outputs": [names[name] for name, _ in sorted(outputs)], **layers}
        )
    if stages == 1:
        found[0]["outputs"] = ["output"]
    found.append({"name": "criterion", "inputs": found[-1]["outputs"][:1], "outputs": ["loss"]})
    return found


def _inputs(graph: LayerGraph, own: list[int]) -> set[str]:
    """Return the ids of the nodes whose outputs a stage reads: nodes of earlier stages, and the model's inputs in this stage.

    `own` holds the indices of the stage's nodes.
    """
    inside = set(own)
    entering = {source for number in own for source in graph.predecessors[number] if source not in inside}
    entering |= {number for number in own if graph.nodes[number].is_input}
    return {graph.nodes[number].id for number in entering if not graph.nodes[number].description.startswith("hidden")}


def _plan(graph: LayerGraph, replicas: list[int]) -> PipelinePlan:
    stages: list[Stage] = []
    first = 0
    entering = sum(node.activation_bytes for node in graph.nodes if node.is_input)
    for index, count in enumerate(replicas):
        own = [node for node in graph.nodes if node.stage == index]
        costed = [node for node in own if not node.is_input]
        before = sum(1 << i for i, node in enumerate(graph.nodes) if (node.stage or 0) < index and not node.is_input)
        until = sum(1 << i for i, node in enumerate(graph.nodes) if (node.stage or 0) <= index and not node.is_input)
        received = crossing_bytes(graph, before) if index else 0.0
        sent = crossing_bytes(graph, until)
        backward_s = sum(node.backward_ms + node.update_ms for node in costed) / 1000
        parameters = sum(node.parameter_bytes for node in costed)
        stages.append(Stage(
            index, tuple(range(first, first + count)),
            sum(node.forward_ms for node in costed) / 1000 + graph.exchange_s(received),
            backward_s + graph.exchange_s(sent if index + 1 < len(replicas) else 0.0), received if index else entering, sent,
            parameters, sum(node.activation_bytes for node in costed),
            # Replicas average gradients around a ring, each step of which exchanges one share of them.
            all_reduce_s=2 * (count - 1) * graph.exchange_s(parameters / count),
            nodes=tuple(node.id for node in own), kinds=tuple(node.kind for node in own),
        ))  # fmt: skip
        first += count
    return PipelinePlan(tuple(stages))


def _confs(modules: int, plan: PipelinePlan, hybrid: bool) -> dict[str, dict[str, Any]]:
    """Return conf.json documents by name. Each maps modules to stages and stages to ranks; the criterion is in the last stage.

    In "dp" all ranks run the whole model, in "mp" each stage has one rank. If `hybrid` is set, "hybrid" has the plan's ranks.
    """
    stages = [*range(modules - 1), modules - 2]
    found: dict[str, dict[str, Any]] = {
        "dp": {"module_to_stage_map": [0] * modules, "stage_to_rank_map": {"0": list(range(plan.ranks))}},
        "mp": {"module_to_stage_map": stages, "stage_to_rank_map": {str(stage): [stage] for stage in range(modules - 1)}},
    }
    if hybrid:
        ranks = {str(stage.stage): list(stage.ranks) for stage in plan.stages}
        found["hybrid"] = {"module_to_stage_map": stages, "stage_to_rank_map": ranks}
    return found
