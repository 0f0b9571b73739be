"""Records one step of a script in detail: the state before it, its batch, every operation of torch, and the state after it."""

import functools
import hashlib
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from iotwin.common.files import write_whole
from iotwin.workloads.detrain.saving import script_state
from iotwin.workloads.detrain.saving.providers import provider_of
from iotwin.workloads.detrain.saving.script_state import Part, Walk, frames_of
from iotwin.workloads.detrain.saving.sharded_tensors import local_part
from iotwin.workloads.detrain.verify.compared_steps import What
from iotwin.workloads.detrain.verify.events import StepEvent
from iotwin.workloads.state.torch_state import TorchGenerators

_UNINITIALISED = ("aten::empty", "aten::new_empty", "aten::resize")  # operations whose results have no defined content


class StepRecord:
    """The events of one step, in the order in which they happen. It is written when the step ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._events: list[StepEvent] = []
        self._mode = _EachOperation(self)
        self._removed_later: list[Any] = []  # handles of hooks
        self._modules: list[str] = []  # names of the modules whose `forward` is running, outermost first
        self._module_names: dict[int, str] = {}
        # By address: parameters, gradients and states of optimizers. The tensors are held, so that no other gets their addresses.
        self._tensors: dict[int, tuple[What, str, torch.Tensor]] = {}
        self._parts: list[Part] = []
        self._phase: What = "input"  # phase of operations outside of modules
        self._paused = False

    # What the session calls

    def before_fetch(self) -> None:
        """Discard what was recorded so far, and record the generators before the batch is fetched."""
        self._events = []
        self._add_generators()

    def begin(self, frame: types.FrameType, indices: Any, item: Any) -> None:
        """Begin the record of the step in `frame`. `item`: its batch, None if the loop's body fetches it."""
        if item is None:
            self.before_fetch()
        parts = Walk(frames_of(frame), lambda *_: None).parts()
        self._parts = [part for part in parts if part.kind == script_state.OBJECT]
        self._add_state()
        if item is not None:
            self.inputs(indices, item)
        self._name_tensors()
        self._watch()

    def inputs(self, indices: Any, item: Any) -> None:
        """Record the batch of the step."""
        self._add("indices", "", "", repr(indices).encode())
        with self._pause():
            for path, content in _leaves(item, ""):
                self._add("input", path, "", content)
        self._phase = "loss"

    def end(self) -> None:
        """Write the record: the step has ended."""
        self._mode.__exit__(None, None, None)
        for handle in self._removed_later:
            handle.remove()
        self._add_state()
        self._add_generators()
        write_whole(self._path, b"".join(msgspec.json.encode(event) + b"\n" for event in self._events))

    # States

    def _add(self, what: What, name: str, op: str, content: bytes, draws: bool = False) -> None:
        self._events.append(StepEvent(what, name, op, hashlib.sha256(content).hexdigest(), draws))

    def _add_generators(self) -> None:
        for name, state in TorchGenerators().state_dict().items():
            self._add("rng", name, "", b" ".join(content for _, content in _leaves(state, "")))

    def _add_state(self) -> None:
        """Record the states of all objects: generators first, then modules, then optimizers and others."""
        for part in self._parts:
            provider = provider_of(part.value)
            if provider is not None and provider.draws:
                for path, content in _leaves(provider.save(part.value, {}), part.path):
                    self._add("rng", path, "", content)
        others = [part for part in self._parts if hasattr(part.value, "state_dict")]
        for part in sorted(others, key=lambda part: not isinstance(part.value, torch.nn.Module)):
            what: What = "parameter" if isinstance(part.value, torch.nn.Module) else "optimizer"
            for path, content in _leaves(part.value.state_dict(), part.path):
                self._add(what, path, "", content)

    def _name_tensors(self) -> None:
        """Note, by address, the tensors that are parameters, gradients, or states of optimizers."""
        for part in self._parts:
            if isinstance(part.value, torch.nn.Module):
                for name, module in part.value.named_modules():
                    self._module_names.setdefault(id(module), f"{part.path}.{name}" if name else part.path)
                for name, each in [*part.value.named_parameters(), *part.value.named_buffers()]:
                    self._name("parameter", f"{part.path}.{name}", each)
                    if each.grad is not None:
                        self._name("gradient", f"{part.path}.{name}", each.grad)
            elif isinstance(part.value, torch.optim.Optimizer):
                for index, state in enumerate(part.value.state.values()):
                    for key, each in state.items():
                        if isinstance(each, torch.Tensor):
                            self._name("optimizer", f"{part.path}.state.{index}.{key}", each)

    def _name(self, what: What, name: str, tensor: torch.Tensor) -> None:
        tensor = local_part(tensor)
        if tensor.layout == torch.strided and tensor.numel():
            self._tensors[tensor.data_ptr()] = what, name, tensor

    # Operations

    def operation(self, op: Any, results: Any) -> None:
        """Record the tensors that an operation has returned or changed."""
        if self._paused or op.name().startswith(_UNINITIALISED):
            return
        with self._pause():
            for tensor in results:
                known = self._tensors.get(tensor.data_ptr()) if tensor.layout == torch.strided else None
                module = self._modules[-1] if self._modules else ""
                what, name = known[:2] if known else (self._phase_now(), "")
                if module and what != "gradient":
                    what, name = "loss", module
                draws = torch.Tag.nondeterministic_seeded in op.tags
                self._add(what, name, str(op), _content(tensor), draws)

    def _phase_now(self) -> What:
        # After a backward pass, operations with gradients belong to another forward pass: changes of weights have no gradients.
        return "loss" if self._phase in ("gradient", "parameter") and torch.is_grad_enabled() else self._phase

    @contextmanager
    def _pause(self) -> Iterator[None]:
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def _watch(self) -> None:
        self._removed_later = [
            register_module_forward_pre_hook(lambda module, _: self._modules.append(self._module_names.get(id(module), ""))),
            register_module_forward_hook(lambda *_: self._leave_module(), always_call=True),
            register_optimizer_step_pre_hook(lambda *_: self._enter("optimizer")),
            register_optimizer_step_post_hook(lambda *_: self._leave_optimizer()),
            _Backward(self),
        ]
        for part in self._parts:
            if isinstance(part.value, torch.nn.Module):
                for name, parameter in part.value.named_parameters():
                    if parameter.requires_grad and parameter.is_leaf:
                        hook = functools.partial(self._accumulated, f"{part.path}.{name}")
                        self._removed_later.append(parameter.register_post_accumulate_grad_hook(hook))
        self._mode.__enter__()

    def _leave_module(self) -> None:
        if self._modules:
            self._modules.pop()

    def _enter(self, phase: What) -> None:
        self._phase = phase

    def _leave_optimizer(self) -> None:
        self._phase = "parameter"
        self._name_tensors()

    def in_backward(self, backward: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a backward pass."""
        before, modules = self._phase, self._modules
        self._phase, self._modules = "gradient", []
        try:
            return backward(*arguments, **options)
        finally:
            self._modules = modules
            self._phase = "gradient" if before != "optimizer" else before
            self._name_tensors()

    def _accumulated(self, name: str, parameter: torch.Tensor) -> None:
        with self._pause():
            if parameter.grad is not None:
                self._name("gradient", name, parameter.grad)
                self._add("gradient", name, "", _content(parameter.grad))


class _EachOperation(TorchDispatchMode):
    """Reports each operation of torch, also of backward passes, to the record."""

    def __init__(self, record: StepRecord) -> None:
        super().__init__()
        self._record = record

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = op(*args, **kwargs)
        # Operations in place may return nothing, such as those on lists of tensors.
        values = [*args, *(None for _ in op._schema.arguments[len(args) :])]
        changed = [
            kwargs.get(argument.name) if value is None else value
            for argument, value in zip(op._schema.arguments, values, strict=False)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        tensors = (local_part(each) for each in pytree.tree_leaves([changed, result]) if isinstance(each, torch.Tensor))
        self._record.operation(op, list({id(each): each for each in tensors}.values()))
        return result


class _Backward:
    """Reports backward passes to the record until it is removed."""

    def __init__(self, record: StepRecord) -> None:
        self._originals = {name: getattr(torch.autograd, name) for name in ("backward", "grad")}
        for name, original in self._originals.items():
            setattr(torch.autograd, name, functools.partial(record.in_backward, original))

    def remove(self) -> None:
        for name, original in self._originals.items():
            setattr(torch.autograd, name, original)


def _content(tensor: torch.Tensor) -> bytes:
    """Return the type, shape and bytes of a tensor, or of this process's part of it."""
    tensor = local_part(tensor)
    head = f"{tensor.dtype} {tuple(tensor.shape)} ".encode()
    if tensor.layout != torch.strided or tensor.is_meta:
        return head
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    whole = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    return head + whole.view(torch.uint8).numpy().tobytes()


def _leaves(value: Any, path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the tensors, arrays and plain values in nested values, each with its path."""
    if isinstance(value, torch.Tensor):
        yield path, _content(value)
    elif isinstance(value, np.ndarray):
        yield path, f"{value.dtype} {value.shape} ".encode() + value.tobytes()
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list | tuple) and not all(isinstance(each, int) for each in value):
        for index, each in enumerate(value):
            yield from _leaves(each, f"{path}.{index}" if path else str(index))
    elif value is None or isinstance(value, bool | int | float | str | bytes | list | tuple):
        yield path, repr(value).encode()
