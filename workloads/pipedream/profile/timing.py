"""Times the forward and backward pass of each layer on stock PyTorch.

Each layer computes on detached inputs, so that its backward pass can run and be timed alone. The gradients of its inputs are then
the starting points of the layers before it. Nothing is hooked or patched. With one CPU thread, times are its processor time, so
that other programs do not lengthen them.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from iotwin.workloads.pipedream.converter.layers import value_of
from iotwin.workloads.pipedream.runtime.weights import SgdVersions

Criterion = Callable[[Tensor], Tensor]  # the model's output -> a scalar
# Arguments: a call of the model, the call's outputs, and their gradients; both by the index of the output.
Observe = Callable[[fx.Node, dict[int, Tensor], dict[int, Tensor]], None]


@dataclass
class LayerTimes:
    """The seconds of a call's passes and update, one number for each minibatch, and the bytes of its outputs and parameters."""

    forward_s: list[float] = field(default_factory=list)
    backward_s: list[float] = field(default_factory=list)
    update_s: list[float] = field(default_factory=list)
    output_bytes: list[float] = field(default_factory=list)
    parameter_bytes: float = 0.0


@dataclass
class _Computed:
    """A computed call: its result, its detached inputs with the call and output index that each comes from, its parameters."""

    result: Any
    inputs: list[tuple[fx.Node, int, Tensor]]
    parameters: list[Tensor]


class LayerTimer:
    """Times the calls of a traced model on a device, "cpu" or "cuda".

    `times` has the times of each call. If several calls use a parameter, it belongs to the first one. `observe`, if set, gets the
    results of each call before its backward pass.
    """

    observe: Observe | None = None

    def __init__(self, traced: fx.GraphModule, device: torch.device) -> None:
        self._traced, self._device = traced, device
        self._clock = time.thread_time if device.type == "cpu" and torch.get_num_threads() == 1 else time.perf_counter
        self._calls = [node for node in traced.graph.nodes if node.op.startswith("call_")]
        self.times = {node: LayerTimes() for node in self._calls}
        self._optimizer = SgdVersions()
        self._due: dict[fx.Node, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        self._owners: dict[Tensor, fx.Node] = {}
        for node in self._calls:
            for parameter in self._parameters(node):
                self.times[node].parameter_bytes += 0 if parameter in self._owners else parameter.nbytes
                self._owners.setdefault(parameter, node)

    def _parameters(self, node: fx.Node) -> list[Tensor]:
        found: list[Tensor] = [value_of(self._traced, each) for each in node.all_input_nodes if each.op == "get_attr"]
        if node.op == "call_module":
            found += self._traced.get_submodule(str(node.target)).parameters()
        return [each for each in found if each.requires_grad]

    def run(self, inputs: Sequence[Tensor], criterion: Criterion | None) -> None:
        """Compute and time both passes of a minibatch, and the update. Without `criterion`, only the forward pass.

        The loss is not timed, since it belongs to no layer.
        """
        waiting = iter(inputs)
        results: dict[fx.Node, Any] = {}
        computed: dict[fx.Node, _Computed] = {}
        gradients: dict[fx.Node, dict[int, Tensor]] = {}
        for node in self._traced.graph.nodes:
            if node.op == "placeholder":
                results[node] = next(waiting)
            elif node.op == "get_attr":
                results[node] = value_of(self._traced, node)
            elif node.op == "output" and criterion is not None:
                output = results[node.args[0]].detach().requires_grad_()
                gradients[node.args[0]] = {0: torch.autograd.grad(criterion(output), output)[0]}
            elif node.op != "output":
                computed[node] = self._forward(node, results)
                results[node] = computed[node].result
        results.clear()
        for node in reversed(self._calls):
            self._backward(node, computed.pop(node), gradients)
        self._update()

    def _forward(self, node: fx.Node, results: dict[fx.Node, Any]) -> _Computed:
        inputs: list[tuple[fx.Node, int, Tensor]] = []
        cut: dict[fx.Node, Any] = {}
        for before in node.all_input_nodes:
            if before.op == "get_attr":
                cut[before] = results[before]
                continue
            values, structure = pytree.tree_flatten(results[before])
            for index, value in enumerate(values):
                if isinstance(value, Tensor) and value.requires_grad:
                    leaf = value.detach().requires_grad_()
                    inputs.append((before, index, leaf))
                    values[index] = leaf.clone() if _writes_to_inputs(node, self._traced) else leaf
                elif isinstance(value, Tensor):
                    values[index] = value.clone() if _writes_to_inputs(node, self._traced) else value
            cut[before] = pytree.tree_unflatten(values, structure)
        arguments = fx.node.map_arg(node.args, cut.__getitem__)
        named = fx.node.map_arg(node.kwargs, cut.__getitem__)
        call = self._callable(node)
        with self._timed(self.times[node].forward_s):
            result = call(*arguments, **named)
        sizes = [float(value.nbytes) for value in pytree.tree_leaves(result) if isinstance(value, Tensor)]
        self.times[node].output_bytes = sizes or [0.0]
        return _Computed(result, inputs, self._parameters(node))

    def _callable(self, node: fx.Node) -> Callable[..., Any]:
        if node.op == "call_module":
            return self._traced.get_submodule(str(node.target))
        if node.op == "call_method":
            return lambda owner, *arguments, **named: getattr(owner, str(node.target))(*arguments, **named)
        return node.target

    def _backward(self, node: fx.Node, computed: _Computed, gradients: dict[fx.Node, dict[int, Tensor]]) -> None:
        arrived = gradients.pop(node, {})
        values = pytree.tree_leaves(computed.result)
        if self.observe is not None:
            self.observe(node, {index: each for index, each in enumerate(values) if isinstance(each, Tensor)}, arrived)
        ends = [index for index in arrived if values[index].requires_grad]
        into = [leaf for _, _, leaf in computed.inputs] + computed.parameters
        times = self.times[node].backward_s
        if not ends or not into:
            times.append(0.0)
            return
        outputs = [values[each] for each in ends]
        with self._timed(times):
            found = torch.autograd.grad(outputs, into, [arrived[each] for each in ends], allow_unused=True)
        for (before, index, _), gradient in zip(computed.inputs, found, strict=False):
            if gradient is not None:
                so_far = gradients.setdefault(before, {})
                so_far[index] = so_far[index] + gradient if index in so_far else gradient
        for weight, gradient in zip(computed.parameters, found[len(computed.inputs) :], strict=True):
            if gradient is not None and self._owners[weight] is node:
                self._due[node].append((weight, gradient))

    def _update(self) -> None:
        """Compute the next version of all weights to time it, as training does after a backward pass. Then drop it."""
        with torch.no_grad():
            for node, updated in self._due.items():
                with self._timed(self.times[node].update_s):
                    for index, (weight, gradient) in enumerate(updated):
                        self._optimizer.next_value(f"{node.name}.{index}", weight, gradient)
        self._due.clear()

    @contextmanager
    def _timed(self, times: list[float]) -> Iterator[None]:
        """Append the seconds in which the device executes the block."""
        begin_s = self._clock()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        times.append(self._clock() - begin_s)


def _writes_to_inputs(node: fx.Node, traced: fx.GraphModule) -> bool:
    if node.op == "call_module":
        return bool(getattr(traced.get_submodule(str(node.target)), "inplace", False))
    name = str(node.target) if node.op == "call_method" else getattr(node.target, "__name__", "")
    return bool(node.kwargs.get("inplace")) or (name.endswith("_") and not name.endswith("__")) or name in ("iadd", "imul")
