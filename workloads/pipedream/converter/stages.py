"""Splits a model into the modules of a pipeline's stages, and lists the tensors that cross from one stage to another."""

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx, nn
from torch.fx.passes.split_module import split_module

from iotwin.common.errors import UsageError
from iotwin.workloads.pipedream.converter.layers import description, is_item, node_ids, trace_layers
from iotwin.workloads.pipedream.converter.transfers import only_tensors_cross
from iotwin.workloads.policies.pipeline import PipelinePlan

_NODE = re.compile(r"node\d{1,9}")


@dataclass(frozen=True)
class StageModule:
    """The layers of one stage. `inputs` and `outputs` name the tensors that its forward pass takes and returns, in order."""

    module: nn.Module
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class SplitModel:
    """A model in stages. `inputs` names the model's own inputs, and `output` is the name of its result."""

    stages: tuple[StageModule, ...]
    inputs: tuple[str, ...]
    output: str

    def producer(self, tensor: str) -> int:
        """Return the stage that sends a tensor. Stage 0 also sends the model's inputs, since it reads the data."""
        return next((index for index, stage in enumerate(self.stages) if tensor in stage.outputs), 0)

    def consumers(self, tensor: str) -> list[int]:
        """Return the later stages that receive a tensor, in order."""
        first = self.producer(tensor)
        return [index for index, stage in enumerate(self.stages) if index > first and tensor in stage.inputs]


def layers(model: nn.Module) -> list[str]:
    """Return the names of the model's calls, in the order of execution. A call is a layer, a function or a method."""
    return [node.name for node in trace_layers(model).graph.nodes if node.op.startswith("call_")]


def planned_split(model: nn.Module, plan: PipelinePlan) -> list[int] | None:
    """Return the stage of each of `layers(model)` in a plan, None if the plan is of another model or has no layers.

    The plan may come from a profile that shares only the layers with parameters, such as PipeDream's published profiles. Every
    other layer then joins the last stage that it reads from.
    """
    traced = trace_layers(model)
    ids = node_ids(traced)
    stage_of = {each: stage.stage for stage in plan.stages for each in stage.nodes}
    kind_of = {each: kind for stage in plan.stages for each, kind in zip(stage.nodes, stage.kinds, strict=False)}
    calls = [node for node in ids if node.op != "placeholder"]
    kinds = {node: description(node, traced).partition("(")[0] for node in calls}
    if stage_of.keys() == set(ids.values()) and all(kind_of.get(ids[node], kinds[node]) == kinds[node] for node in calls):
        return [stage_of[ids[node]] for node in calls]
    weighted = [node for node in calls if _has_parameters(node, traced)]
    known = {kinds[node] for node in weighted}
    planned = sorted((each for each, kind in kind_of.items() if kind in known and _NODE.fullmatch(each)), key=_node_number)
    if [kind_of[each] for each in planned] != [kinds[node] for node in weighted]:
        return None
    found = {node: stage_of[each] for node, each in zip(weighted, planned, strict=True)}
    for node in calls:
        found.setdefault(node, max((found[before] for before in node.all_input_nodes if before in found), default=0))
    return [found[node] for node in calls]


def _node_number(node: str) -> int:
    return int(node.removeprefix("node"))


def _has_parameters(node: fx.Node, traced: fx.GraphModule) -> bool:
    return node.op == "call_module" and any(True for _ in traced.get_submodule(str(node.target)).parameters())


def equal_split(model: nn.Module, stages: int) -> list[int]:
    """Return the stage of each of `layers(model)` so that each stage has about as many calls of layers with parameters.

    Raises UsageError if the model has fewer such calls than stages.
    """
    traced = trace_layers(model)
    weighted = [_has_parameters(node, traced) for node in traced.graph.nodes if node.op.startswith("call_")]
    total = sum(weighted)
    if total < stages:
        raise UsageError(f"the model has {total} layers with parameters, too few for {stages} stages; use fewer stages")
    found, seen = [], 0
    for has_parameters in weighted:
        seen += has_parameters
        found.append(max(0, seen - 1) * stages // total)
    return found


def split(model: nn.Module, stage_of: Sequence[int]) -> SplitModel:
    """Return the model in stages. `stage_of` has the stage of each of `layers(model)`; the modules share the model's parameters.

    A parameter that several stages use belongs to the first one, whose outputs contain it. Raises UsageError if a layer reads the
    output of a later stage, or if a tensor that stages share cannot cross (see `only_tensors_cross`).
    """
    traced = trace_layers(model)
    calls = [node for node in traced.graph.nodes if node.op.startswith("call_")]
    if len(stage_of) != len(calls):
        raise UsageError(f"the model has {len(calls)} calls of layers, and stages are given for {len(stage_of)}")
    stages = dict(zip(calls, stage_of, strict=True))
    for node in calls:
        for before in node.all_input_nodes:
            if stages.get(before, 0) > stages[node]:
                raise UsageError(
                    f"{node.name} of stage {stages[node]} reads {before.name} of stage {stages[before]}; "
                    "a stage reads earlier stages only"
                )
        if is_item(node) and node.args[0] in stages:  # only items of a tuple cross between stages, not the tuple
            stages[node] = stages[node.args[0]]
    only_tensors_cross(traced, stages)
    parent = split_module(traced, model, stages.__getitem__)
    found = _read_parent(parent, sorted(set(stages.values())))
    if found.output not in found.stages[-1].outputs:
        raise UsageError(f"the last of {len(found.stages)} stages does not make the model's output; use fewer stages")
    return found


def _read_parent(parent: fx.GraphModule, numbers: list[int]) -> SplitModel:
    """Read stages and tensor names from the graph that `split_module` makes: a call per stage, and the items of its result."""
    if numbers != list(range(len(numbers))):
        raise UsageError(f"the stages of the layers are {numbers}; number them from 0 without a gap")
    inputs: list[str] = []
    found: dict[int, tuple[fx.Node, list[str]]] = {}
    output = ""
    for node in parent.graph.nodes:
        if node.op == "placeholder":
            inputs.append(node.name)
        elif node.op == "call_module":
            found[int(str(node.target).removeprefix("submod_"))] = (node, [])
        elif node.op == "call_function" and node.target is operator.getitem:
            found[_stage_of_call(node.args[0], found)][1].append(node.name)
        elif node.op == "output":
            if not isinstance(node.args[0], fx.Node):
                raise UsageError("the model returns several tensors; a pipeline needs a model that returns one")
            output = node.args[0].name
    stages = []
    for number in numbers:
        call, items = found[number]
        stages.append(
            StageModule(
                parent.get_submodule(str(call.target)), tuple(str(each) for each in call.args), tuple(items) or (call.name,)
            )
        )
    return SplitModel(tuple(stages), tuple(inputs), output)


def _stage_of_call(call: object, found: dict[int, tuple[fx.Node, list[str]]]) -> int:
    return next(number for number, (node, _) in found.items() if node is call)
