"""The layers of a model, in the order of execution, under the ids and descriptions that they have in a profile's graph.txt."""

import operator
from typing import Any

import torch
from torch import fx, nn

from iotwin.common.errors import UsageError

# PipeDream's names of operations that are no modules. Other operations have the name of the function or method.
_NAMES = {
    "add": "Add", "iadd": "Add(inplace)", "mul": "Mul", "cat": "Concat", "size": "Size", "view": "View",
    "transpose": "Transpose", "getitem": "__getitem__",
}  # fmt: skip


class _LayerTracer(fx.Tracer):
    """Records one call for each layer of torch.nn, and for other modules that own parameters or buffers, such as an attention."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        own = any(True for _ in m.parameters(recurse=False)) or any(True for _ in m.buffers(recurse=False))
        return own or super().is_leaf_module(m, module_qualified_name)


def trace_layers(model: nn.Module) -> fx.GraphModule:
    """Return the graph of the model's calls. A call is a layer, a function or a method.

    Raises UsageError if the calls depend on the data.
    """
    tracer = _LayerTracer()
    try:
        return fx.GraphModule(model, tracer.trace(model))
    except (fx.proxy.TraceError, TypeError, NotImplementedError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0].split(". ")[0]
        raise UsageError(f"the model cannot be split, since its control flow depends on data: {first}") from None


def node_ids(traced: fx.GraphModule) -> dict[fx.Node, str]:
    """Return the ids of the model's inputs and calls: node1, node2, ... in the order of execution, as PipeDream's profiler."""
    own = [node for node in traced.graph.nodes if node.op == "placeholder" or node.op.startswith("call_")]
    return {node: f"node{index}" for index, node in enumerate(own, 1)}


def description(node: fx.Node, traced: fx.GraphModule) -> str:
    """Return the description of a call: the representation of a module, or an operation's name with its constant arguments."""
    if node.op == "call_module":
        text = repr(traced.get_submodule(str(node.target)))
    else:
        name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", str(node.target))
        constants = [repr(each) for each in node.args if not _has_node(each)]
        constants += [f"{key}={value!r}" for key, value in node.kwargs.items() if not _has_node(value)]
        text = _NAMES.get(name, name) + (f"({', '.join(constants)})" if constants else "")
    return text.replace("\n", "").replace(" -- ", " - ")


def is_item(node: fx.Node) -> bool:
    """Return True if the call `node` only reads one item, at a constant index, of another call's result."""
    return node.target is operator.getitem and not _has_node(node.args[1])


def _has_node(argument: Any) -> bool:
    found: list[fx.Node] = []
    fx.node.map_arg(argument, found.append)
    return bool(found)


def value_of(traced: fx.GraphModule, node: fx.Node) -> torch.Tensor:
    """Return the tensor that a node of kind get_attr names."""
    owner, _, name = str(node.target).rpartition(".")
    value: torch.Tensor = getattr(traced.get_submodule(owner), name)
    return value
