"""From an optimised graph to what the runtime starts from: modules with their tensors, confs of ranks, the plan.

Names of tensors are those of the original's convert_graph_to_model.py: ``out<k>`` is numbered once for each edge that leaves a
stage, so that numbers may skip, and a stage's tensors are listed in the order of their node ids as strings.
"""

from dataclasses import dataclass
from typing import Any

from common.errors import UsageError
from workloads.pipedream.graph import Graph, partition
from workloads.pipedream.report import crossing_bytes
from workloads.policies.pipeline import Plan, Stage


@dataclass(frozen=True)
class Converted:
    """What a conversion gives: modules as ``{"name", "inputs", "outputs"}``, confs by kind, the stages' graphs, the plan."""

    modules: list[dict[str, Any]]
    confs: dict[str, dict[str, Any]]
    stages: list[Graph]
    plan: Plan


def parse_ranks(text: str, stages: int) -> list[int]:
    """Return the ranks of each stage from ``0:3,1:1``; UsageError for a stage that is not there, missing or given twice."""
    found: dict[int, int] = {}
    for pair in text.split(","):
        stage, separator, ranks = pair.partition(":")
        if not (separator and stage.strip().isdigit() and ranks.strip().isdigit() and int(ranks) > 0):
            raise UsageError(f"--stage-to-num-ranks: '{pair}' is not STAGE:RANKS; write for example 0:3,1:1")
        if int(stage) in found or int(stage) >= stages:
            why = "is given twice" if int(stage) in found else f"is not there; the graph has stages 0 to {stages - 1}"
            raise UsageError(f"--stage-to-num-ranks: stage {int(stage)} {why}")
        found[int(stage)] = int(ranks)
    missing = sorted(set(range(stages)) - found.keys())
    if missing:
        raise UsageError(f"--stage-to-num-ranks: stage {missing[0]} is left out; the graph has stages 0 to {stages - 1}")
    return [found[stage] for stage in range(stages)]


def convert(graph: Graph, ranks: str | None = None) -> Converted:
    """Return modules, confs and plan of an optimised graph; `ranks` as `parse_ranks` takes it, else one rank a stage."""
    whole = graph.without(n for n in graph.sinks() if graph.nodes[n].description.startswith("__getitem__"))
    by_stage = partition(whole)
    if list(by_stage) != list(range(len(by_stage))):
        missing = next(index for index, stage in enumerate(by_stage) if index != stage)
        raise UsageError(f"{graph.name}: no node has stage_id={missing}; stages are numbered from 0 without a gap")
    for source, target in whole.edges:
        a, b = whole.nodes[source], whole.nodes[target]
        if (a.stage or 0) > (b.stage or 0):
            raise UsageError(f"{graph.name}: the edge {a.id} -- {b.id} leads from stage {a.stage} back to stage {b.stage}")
    replicas = [1] * len(by_stage) if ranks is None else parse_ranks(ranks, len(by_stage))
    modules = _modules(whole, len(by_stage))
    plan = _plan(whole, replicas)
    return Converted(modules, _confs(len(modules), plan, ranks is not None), list(by_stage.values()), plan)


def _modules(graph: Graph, stages: int) -> list[dict[str, Any]]:
    """Return the stages with their input and output tensors, and the criterion."""
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
        found.append({"name": f"Stage{stage}", "inputs": entering, "outputs": [names[name] for name, _ in sorted(outputs)]})
    if stages == 1:
        found[0]["outputs"] = ["output"]
    found.append({"name": "criterion", "inputs": found[-1]["outputs"][:1], "outputs": ["loss"]})
    return found


def _inputs(graph: Graph, own: list[int]) -> set[str]:
    """Return the ids of the nodes whose output enters a stage of nodes `own`; an input of the model enters where it is."""
    inside = set(own)
    entering = {source for number in own for source in graph.predecessors[number] if source not in inside}
    entering |= {number for number in own if graph.nodes[number].is_input}
    return {graph.nodes[number].id for number in entering if not graph.nodes[number].description.startswith("hidden")}


def _plan(graph: Graph, replicas: list[int]) -> Plan:
    stages: list[Stage] = []
    first = 0
    entering = sum(node.activation_bytes for node in graph.nodes if node.is_input)
    for index, count in enumerate(replicas):
        own = [node for node in graph.nodes if node.stage == index]
        costed = [node for node in own if not node.is_input]
        before = sum(1 << i for i, node in enumerate(graph.nodes) if (node.stage or 0) < index and not node.is_input)
        until = sum(1 << i for i, node in enumerate(graph.nodes) if (node.stage or 0) <= index and not node.is_input)
        stages.append(Stage(
            index, tuple(range(first, first + count)), sum(node.forward_ms for node in costed) / 1000,
            sum(node.backward_ms for node in costed) / 1000, crossing_bytes(graph, before) if index else entering,
            crossing_bytes(graph, until), sum(node.parameter_bytes for node in costed),
            sum(node.activation_bytes for node in costed), nodes=tuple(node.id for node in own),
        ))  # fmt: skip
        first += count
    return Plan(tuple(stages))


def _confs(modules: int, plan: Plan, hybrid: bool) -> dict[str, dict[str, Any]]:
    """Return the confs: all ranks data parallel, a rank a stage, and the plan's ranks where they were given.

    The criterion goes with the last stage.
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
