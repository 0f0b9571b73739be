"""Splits a model into the modules of a pipeline's stages, and lists the tensors that cross from one stage to another."""

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import fx, nn
from torch.fx.passes.split_module import split_module

from iotwin.common.errors import UsageError


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
        """Return the stage that sends a tensor. Stage 0 reads the data, so that it also sends the model's inputs."""
        return next((index for index, stage in enumerate(self.stages) if tensor in stage.outputs), 0)

    def consumers(self, tensor: str) -> list[int]:
        """Return the later stages that receive a tensor, in order."""
        first = self.producer(tensor)
        return [index for index, stage in enumerate(self.stages) if index > first and tensor in stage.inputs]


def layers(model: nn.Module) -> list[str]:
    """Return the names of the model's calls, in the order of execution. A call is a layer, a function or a method."""
    return [node.name for node in _trace(model).graph.nodes if node.op.startswith("call_")]


def equal_split(model: nn.Module, stages: int) -> list[int]:
    """Return the stage of each of `layers(model)` so that each stage has about as many calls of layers with parameters.

    Raises UsageError if the model has fewer such calls than stages.
    """
    traced = _trace(model)
    modules = dict(traced.named_modules())
    weighted = [
        node.op == "call_module" and any(True for _ in modules[str(node.target)].parameters())
        for node in traced.graph.nodes
        if node.op.startswith("call_")
    ]
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

    Raises UsageError if a layer reads the output of a later stage, or if two stages share a parameter.
    """
    traced = _trace(model)
    calls = [node for node in traced.graph.nodes if node.op.startswith("call_")]
    if len(stage_of) != len(calls):
        raise UsageError(f"the model has {len(calls)} calls of layers, and stages are given for {len(stage_of)}")
    stages = {node.name: stage for node, stage in zip(calls, stage_of, strict=True)}
    for node in calls:
        for before in node.all_input_nodes:
            if stages.get(before.name, 0) > stages[node.name]:
                raise UsageError(
                    f"{node.name} of stage {stages[node.name]} reads {before.name} of stage {stages[before.name]}; "
                    "a stage reads earlier stages only"
                )
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            stages[node.name] = min((stages[user.name] for user in node.users if user.name in stages), default=0)
    parent = split_module(traced, model, lambda node: stages[node.name])
    found = _read_parent(parent, sorted(set(stage_of)))
    _refuse_shared_parameters(found.stages)
    return found


def _trace(model: nn.Module) -> fx.GraphModule:
    try:
        return fx.symbolic_trace(model)
    except (fx.proxy.TraceError, TypeError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise UsageError(f"the model cannot be split, since its control flow depends on data: {first}") from None


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


def _refuse_shared_parameters(stages: Sequence[StageModule]) -> None:
    owners: dict[torch.Tensor, tuple[int, str]] = {}
    for index, stage in enumerate(stages):
        for name, parameter in stage.module.named_parameters():
            owner, first_name = owners.setdefault(parameter, (index, name))
            if owner != index:
                raise UsageError(
                    f"stages {owner} and {index} share the parameter {first_name}; put the layers that use it in one stage"
                )
