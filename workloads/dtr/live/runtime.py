"""Trains within a memory budget: sees every operation below autograd, evicts what it can compute again, and does so when needed.

The rules are DTR's (docs/dtr.md): the value with the lowest score is evicted, and a value that an operation reads is computed
again from its inputs. Memory is freed before an operation allocates, not after.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from iotwin.workloads.dtr.live.operations import TINY_BYTES, Facts, OperatorCall, facts_of, tensors_in
from iotwin.workloads.dtr.live.rematerializer import Rematerializer
from iotwin.workloads.dtr.live.values import CAN_SWAP, Argument, Operation, Stored, Value
from iotwin.workloads.dtr.simulator.heuristics import Heuristic


class Runtime(TorchDispatchMode):
    """While it is entered, the storages of `device` that its thread's operations touch take at most `budget` bytes together."""

    def __init__(self, budget: int, heuristic: Heuristic, device: torch.device, **choice: Any) -> None:
        super().__init__()
        self.memory = Rematerializer(budget, heuristic, device, **choice)
        self.untracked = False  # True: results are never evicted
        self.busy = False
        self._lock = threading.RLock()
        self._forked = False
        os.register_at_fork(after_in_child=_Forget(self))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. If True, torch would call Python several times per operation to exclude it from torch.compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._forked:  # in a loader
            return func(*args, **kwargs)
        facts = facts_of(func)
        # On a GPU, autograd's threads run operations, too. One thread at a time may change what is in memory.
        with self._lock:
            before, self.busy = self.busy, True
            try:
                if facts.view and not facts.reshapes:
                    return self._view(func, args, kwargs)
                read = tensors_in(args)
                if kwargs:
                    read += tensors_in(kwargs.values())
                if facts.pins or not all(map(_plain, read)):
                    return self._run_pinned(func, facts, args, kwargs, read)
                return self._run(OperatorCall(func, facts, args, kwargs, read))
            finally:
                self.busy = before

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """For calls from elsewhere than an operation: what the runtime computes must not be seen by the runtime."""
        with self._lock, torch._C._DisableTorchDispatch():
            before, self.busy = self.busy, True
            try:
                yield
            finally:
                self.busy = before

    def _view(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a view, for which no data need be in memory. Where evicted storages have no bytes, PyTorch may object."""
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            if CAN_SWAP:
                raise
            with self.memory.held([self.memory.content(self.memory.find(tensor)) for tensor in tensors_in(args)]):
                return func(*args, **kwargs)

    def _run_pinned(self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], read: list[Tensor]) -> Any:
        """Run an operation that may keep its arguments, or change their storages; these are never evicted from now on."""
        for tensor in read:
            self.pin(tensor)
        result = func(*args, **kwargs)
        if facts.reshapes:
            self.memory.resized([self.memory.find(tensor) for tensor in read if _plain(tensor)])
        return result

    def pin(self, tensor: Tensor) -> None:
        """Bring a tensor to memory, and never evict it again."""
        if _plain(tensor) and not self._forked:
            with self._alone():
                self.memory.pin(self.memory.find(tensor))

    def pin_all(self) -> None:
        """Bring everything that the program holds to memory, and never evict it again."""
        with self._alone():
            self.memory.pin_all()

    def keep_dependants(self, tensors: list[Tensor]) -> None:
        """Compute what was computed from `tensors` and is evicted, and never evict it again: they are about to change."""
        with self._alone():
            for tensor in tensors:
                if _plain(tensor):
                    self.memory.keep_dependants(self.memory.find(tensor))

    def _run(self, call: OperatorCall) -> Any:
        memory = self.memory
        values = [memory.content(memory.find(tensor)) for tensor in call.read]
        inputs = list(dict.fromkeys(values)) if len(values) > 1 else values
        tracked = not self.untracked and call.facts.repeatable(memory.device.is_gpu)
        plan = memory.plan_of(call)
        memory.acquire(inputs)
        try:
            written: list[Stored] = []
            overwritten: list[int] = []
            if call.facts.written:
                written = list(dict.fromkeys(memory.find(tensor) for tensor in call.facts.modified(call.args, call.kwargs)))
                overwritten = [inputs.index(memory.content(one)) for one in written]
                evictable = plan.fresh_bytes > TINY_BYTES or any(one.managed and one.owner is not None for one in written)
                for one in written:
                    memory.before_write(one, tracked and evictable)
            memory.reserve_for(call, plan)
            state = memory.device.random_state(call.kwargs) if tracked and call.facts.random else None
            result = memory.timed(call, plan)
            made = [memory.adopt(storage) for storage in _fresh_storages(result, call.read)]
            if made or written:
                if memory.resized(written):  # a result `out` that was too small: the call cannot be repeated on its old storage
                    tracked = False
                wanted = [one for one in made if one.managed and one.bytes > TINY_BYTES] if tracked else []
                wanted += [one for one in written if tracked and one.managed and one.owner is not None]
                operation = None
                if wanted:
                    operation = _record(call, plan, inputs, values)
                    operation.random_state = state
                    operation.written = overwritten
                memory.results(operation, made, written, wanted)
        finally:
            memory.release(inputs)
        return result


class _Forget:
    """Marks a runtime as one in a forked process, where nothing is limited. Keeps no runtime alive."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = weakref.ref(runtime)

    def __call__(self) -> None:
        runtime = self._runtime()
        if runtime is not None:
            runtime._forked = True


_PLAIN_TYPES = (Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _plain(tensor: Tensor) -> bool:
    """Return True if a tensor is nothing but a view of a storage with bytes."""
    if tensor.__class__ not in _PLAIN_TYPES or tensor.layout is not torch.strided:
        return False
    return not (tensor.is_neg() or tensor.is_conj() or tensor.is_quantized)


def _fresh_storages(result: Any, read: list[Tensor]) -> list[UntypedStorage]:
    """Return the storages of an operation's results, in order, without those that it read."""
    if isinstance(result, Tensor):
        result = (result,)
    elif not isinstance(result, (list, tuple)):
        return []
    given = {tensor.untyped_storage()._cdata for tensor in read}
    storages = (tensor.untyped_storage() for tensor in tensors_in(result) if _plain(tensor))
    return list({storage._cdata: storage for storage in storages if storage._cdata not in given}.values())


def _record(call: OperatorCall, plan: Any, inputs: list[Value], values: list[Value]) -> Operation:
    """Record a call that ran. `values`: the content of each tensor that it read; `inputs`: the same, each once."""
    operation = Operation(call.func, inputs, plan)
    index_of = {value: index for index, value in enumerate(inputs)}
    arguments = {id(tensor): Argument(index_of[value], tensor) for tensor, value in zip(call.read, values, strict=True)}
    operation.args = _recorded(call.args, arguments)
    if call.kwargs:
        operation.kwargs = dict(zip(call.kwargs, _recorded(call.kwargs.values(), arguments), strict=True))
    reference = weakref.ref(operation)
    for value in inputs:
        value.users.append(reference)
        if value.operation is None and value.kept is None and value.stored is not None:
            value.kept = value.stored.storage()
    return operation


def _recorded(values: Any, arguments: dict[int, Argument]) -> tuple[Any, ...]:
    """Return arguments of a call with an `Argument` in place of each tensor."""
    return tuple(
        arguments[id(value)] if isinstance(value, Tensor)
        else _recorded(value, arguments) if isinstance(value, (list, tuple))
        else value
        for value in values
    )  # fmt: skip
