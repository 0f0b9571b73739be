"""Rewrites the graph of a model so that only tensors cross from one stage to another.

* A parameter that several stages use belongs to the first of them. Later stages receive it with each minibatch, as they receive
  activations, and return its gradient. All stages thus use the version that the first one uses.
* A number, such as a tensor's size, crosses as a tensor of one element.
"""

import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn

from iotwin.common.errors import UsageError
from iotwin.workloads.pipedream.converter.layers import value_of

_SIZES = ("size", "dim", "numel")  # methods of a tensor that return numbers
_SHAPES = ("shape", "ndim")  # attributes of a tensor that are numbers


class Lender(nn.Module):
    """Returns a tensor that it holds: a parameter or buffer that later stages receive."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        if isinstance(weight, nn.Parameter):
            self.weight = weight
        else:
            self.register_buffer("weight", weight)

    def forward(self) -> Tensor:
        """Return the tensor."""
        weight: Tensor = self.weight
        return weight


class Borrower(nn.Module):
    """Calls a layer. Its parameters called `names` are the first arguments of each call, since an earlier stage owns them."""

    def __init__(self, layer: nn.Module, names: list[str]) -> None:
        super().__init__()
        self.layer = copy.copy(layer)
        self.layer._parameters = {**layer._parameters, **dict.fromkeys(names)}
        self.names = names

    def forward(self, *arguments: Any, **named: Any) -> Any:
        """Call the layer with the received parameters and the arguments after them, and return its result."""
        own, count = self.layer._parameters, len(self.names)
        own.update(zip(self.names, arguments, strict=False))
        try:
            return self.layer(*arguments[count:], **named)
        finally:
            own.update(dict.fromkeys(self.names))


def only_tensors_cross(traced: fx.GraphModule, stages: dict[fx.Node, int]) -> None:
    """Rewrite a traced model. `stages`: the stage of each of its calls; gets those of new calls, too.

    Raises UsageError if stages share a parameter that cannot be received, such as one of an LSTM, or buffers.
    """
    _lend(traced, stages)
    _box(traced, stages)
    traced.graph.lint()


def _lend(traced: fx.GraphModule, stages: dict[fx.Node, int]) -> None:
    users: dict[Tensor, list[tuple[fx.Node, str]]] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            users.setdefault(value_of(traced, node), []).extend((user, "") for user in node.users)
        elif node.op == "call_module":
            for name, parameter in traced.get_submodule(str(node.target)).named_parameters():
                users.setdefault(parameter, []).append((node, name))
    _refuse_shared_buffers(traced, stages)
    first_call = next(node for node in traced.graph.nodes if node in stages)
    borrowed: dict[fx.Node, dict[str, fx.Node]] = {}
    lenders: dict[Tensor, fx.Node] = {}
    for index, (weight, calls) in enumerate(users.items()):
        owner = min((stages[node] for node, _ in calls if node in stages), default=0)
        later = [(node, name) for node, name in calls if name and stages[node] > owner]
        if not later and all(name for _, name in calls):
            continue
        traced.add_submodule(f"lender_{index}", Lender(weight))
        with traced.graph.inserting_before(first_call):
            lenders[weight] = traced.graph.call_module(f"lender_{index}")
        stages[lenders[weight]] = owner
        for node, name in later:
            borrowed.setdefault(node, {})[name] = lenders[weight]
    for node in [node for node in traced.graph.nodes if node.op == "get_attr"]:
        if node.users:
            node.replace_all_uses_with(lenders[value_of(traced, node)])
        traced.graph.erase_node(node)
    for index, (node, weights) in enumerate(borrowed.items()):
        _borrow(traced, stages, node, weights, f"borrower_{index}")


def _borrow(traced: fx.GraphModule, stages: dict[fx.Node, int], node: fx.Node, weights: dict[str, fx.Node], name: str) -> None:
    """Replace the call of a layer by one that receives some of the layer's parameters."""
    layer = traced.get_submodule(str(node.target))
    if isinstance(layer, nn.RNNBase) or not layer._parameters.keys() >= weights.keys():
        which = f"{node.target}.{next(iter(weights))}"
        raise UsageError(
            f"stage {stages[node]} shares the parameter {which} with an earlier stage, and a {type(layer).__name__} cannot "
            "receive it; put the layers that use it in one stage"
        )
    traced.add_submodule(name, Borrower(layer, list(weights)))
    with traced.graph.inserting_before(node):
        call = traced.graph.call_module(name, (*weights.values(), *node.args), node.kwargs)
    stages[call] = stages.pop(node)
    node.replace_all_uses_with(call)
    traced.graph.erase_node(node)


def _refuse_shared_buffers(traced: fx.GraphModule, stages: dict[fx.Node, int]) -> None:
    """Raise UsageError if two stages update the same buffer, such as the running mean of a layer that both call."""
    owners: dict[Tensor, int] = {}
    for node in stages:
        if node.op == "call_module":
            for name, buffer in traced.get_submodule(str(node.target)).named_buffers():
                if owners.setdefault(buffer, stages[node]) != stages[node]:
                    raise UsageError(
                        f"stages {owners[buffer]} and {stages[node]} share the buffer {node.target}.{name}; put the layers that "
                        "use it in one stage"
                    )


def _box(traced: fx.GraphModule, stages: dict[fx.Node, int]) -> None:
    numbers: set[fx.Node] = set()
    for node in list(traced.graph.nodes):
        if not _is_number(node, numbers):
            continue
        numbers.add(node)
        later: dict[int, list[fx.Node]] = {}
        for user in node.users:
            if stages.get(user, stages[node]) > stages[node]:
                later.setdefault(stages[user], []).append(user)
        if not later:
            continue
        with traced.graph.inserting_after(node):
            boxed = traced.graph.call_function(as_tensor_of_numbers, (node,))
        stages[boxed] = stages[node]
        for stage, users in later.items():
            with traced.graph.inserting_after(boxed):
                again = traced.graph.call_function(as_numbers, (boxed,))
            stages[again] = stage
            numbers.add(again)
            for user in users:
                user.replace_input_with(node, again)


def _is_number(node: fx.Node, numbers: set[fx.Node]) -> bool:
    """Return True if a call returns one or more numbers instead of a tensor: a size, or the result of operators on sizes."""
    if node.op == "call_method":
        return node.target in _SIZES
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in _SHAPES
    before = node.all_input_nodes
    return bool(before) and numbers.issuperset(before) and getattr(node.target, "__module__", "") == operator.add.__module__


def as_tensor_of_numbers(value: Any) -> Tensor:
    """Return a number, or several, as a tensor."""
    return torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)


def as_numbers(tensor: Tensor) -> Any:
    """Return the number, or the list of numbers, in a tensor."""
    return tensor.tolist()
