"""Trains within a memory budget: evicts results of PyTorch's operations, and computes them again when they are read.

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

from iotwin.workloads.dtr.live.operations import (
    TINY_BYTES,
    AllocationPlan,
    Facts,
    facts_of,
    is_plain,
    known_facts,
    signed,
    tensors_in,
)  # fmt: skip
from iotwin.workloads.dtr.live.rematerializer import Rematerializer
from iotwin.workloads.dtr.live.values import CAN_SWAP, Operation, Stored, Value, storage_of
from iotwin.workloads.dtr.simulator.heuristics import Heuristic


class Runtime(TorchDispatchMode):
    """A context manager: within it, the storages of `device` that operations of its threads touch take at most `budget` bytes."""

    def __init__(self, budget: int, heuristic: Heuristic, device: torch.device, **choice: Any) -> None:
        super().__init__()
        self.memory = Rematerializer(budget, heuristic, device, **choice)
        self.untracked = False  # True: results are never evicted
        self._lock = threading.RLock()
        self._inert = False  # True in a forked process and after the end: operations run without the runtime
        os.register_at_fork(after_in_child=_Forget(self))

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. If True, torch would call Python several times per operation to exclude it from torch.compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if kwargs is None:
            kwargs = {}
        facts = known_facts.get(id(func)) or facts_of(func)
        if (facts.view and CAN_SWAP) or self._inert:  # for a view, no data need be in memory
            return func(*args, **kwargs)
        # Several threads may run operations, such as autograd's of a GPU. One at a time may change what is in memory.
        with self._lock:
            if self._inert:  # the runtime ended while this thread waited for the lock
                return func(*args, **kwargs)
            return self._view(func, args, kwargs) if facts.view else self._run(func, facts, args, kwargs)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Lock the runtime for a call of its methods. Operations that the runtime runs in the block do not enter it again."""
        with self._lock, torch._C._DisableTorchDispatch():
            yield

    def _view(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Return a view. Its data need not be in memory, unless evicted storages have no bytes and PyTorch refuses the view."""
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            if CAN_SWAP:
                raise
            with self.memory.held([self.memory.content(self.memory.find(storage_of(tensor))) for tensor in tensors_in(args)]):
                return func(*args, **kwargs)

    def _run_pinned(self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], read: list[Tensor]) -> Any:
        """Run an operation that may keep its arguments, or change their storages. Its arguments are never evicted from now on."""
        for tensor in read:
            self.pin(tensor)
        result = func(*args, **kwargs)
        if facts.reshapes:
            self.memory.resized([self.memory.find(storage_of(tensor)) for tensor in read if is_plain(tensor)])
        return result

    def pin(self, tensor: Tensor) -> None:
        """Bring a tensor to memory, and never evict it again."""
        if is_plain(tensor) and not self._inert:
            with self._alone():
                self.memory.pin(self.memory.find(storage_of(tensor)))

    def pin_known(self, tensor: Tensor) -> None:
        """Pin a tensor if it can be evicted."""
        if is_plain(tensor):
            stored = getattr(storage_of(tensor), "_iotwin_dtr", None)
            if stored is not None and stored.owner is not None:
                self.pin(tensor)

    def used_bytes(self) -> int:
        """Return the bytes that tensors take now."""
        with self._alone():
            return self.memory.measure()

    def end(self) -> None:
        """Bring everything that the program holds to memory, and forget it."""
        with self._alone():
            try:
                self.memory.pin_all()
            finally:
                self.memory.end()
                self._inert = True

    def keep_dependants(self, tensors: list[Tensor]) -> None:
        """Bring the values computed from `tensors` to memory, and never evict them again: `tensors` are about to change."""
        with self._alone():
            for tensor in tensors:
                if is_plain(tensor):
                    self.memory.keep_dependants(self.memory.find(storage_of(tensor)))

    def _run(self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any]) -> Any:
        read: list[Tensor] = []
        signature = [id(func), *kwargs]
        plain = signed(args, read, signature)
        if kwargs:
            plain = signed(kwargs.values(), read, signature) and plain
        if facts.pins or not plain:
            return self._run_pinned(func, facts, args, kwargs, read)
        memory = self.memory
        if memory.dead:
            memory.settle_deaths()
        find = memory.find
        stored = [find(storage_of(tensor)) for tensor in read]
        inputs = stored if len(stored) < 2 else list(dict.fromkeys(stored))
        plan = memory.plans.find(signature, func, args, kwargs, read)
        tracked = facts.repeatable[memory.device.is_gpu] and not self.untracked
        call = _Call(func, facts, args, kwargs, plan, read, stored, inputs, tracked)
        prepare = facts.written and self._find_written(call)
        locked_bytes = memory.access(inputs)
        if not prepare and locked_bytes >= 0 and memory.fits(plan, locked_bytes):
            return self._finish(call)
        call.contents = [memory.content(one) for one in inputs]
        memory.acquire(call.contents)
        try:
            for one in call.written:
                memory.before_write(one, call.read_again)
            memory.reserve_for(plan, func)
            return self._finish(call)
        finally:
            memory.release(call.contents)

    def _find_written(self, call: "_Call") -> bool:
        """Note the storages that a call modifies. Return True if their contents must be prepared for that."""
        memory = self.memory
        modified = call.facts.modified(call.args, call.kwargs)
        call.written = written = list(dict.fromkeys([memory.find(storage_of(tensor)) for tensor in modified]))
        owned = any(one.managed and one.owner is not None for one in written)
        call.blind = call.facts.training_flag >= 0 and not owned
        call.read_again = call.tracked and (owned or (call.plan.fresh_bytes > TINY_BYTES and not call.blind))
        return any(memory.needs_preparation(one, call.read_again) for one in written)

    def _finish(self, call: "_Call") -> Any:
        """Run a call, whose inputs are in memory, and record it if it can be repeated."""
        memory, tracked, written = self.memory, call.tracked, call.written
        state = memory.device.random_state(call.kwargs) if tracked and call.facts.random else None
        result = memory.timed(call.plan, call.func, call.args, call.kwargs)
        made = [memory.adopt(storage) for storage in _fresh_storages(result)] if call.facts.makes else []
        if call.facts.resizes and memory.resized(written):
            tracked = False  # a result `out` was too small: the call cannot be repeated on the old storage
        wanted = [one for one in made if one.managed and one.bytes > TINY_BYTES] if tracked else []
        if written:
            wanted += [one for one in written if tracked and one.managed and one.owner is not None]
        operation = self._record(call, state) if wanted else None
        if written:
            memory.overwritten(written)
            made += written
        if operation is not None:
            memory.computed_by(operation, made, wanted)
        return result

    def _record(self, call: "_Call", state: Tensor | None) -> Operation:
        """Record a call that ran."""
        content, inputs, plan = self.memory.content, call.inputs, call.plan
        contents = call.contents
        if contents is None:
            contents = [one.owner or content(one) for one in inputs]
        if call.blind:  # the content does not matter, so that it need not be copied before it is overwritten
            contents = [_unseen(one) if one in call.written else value for one, value in zip(inputs, contents, strict=True)]
        if inputs is call.stored:
            tensors = [(index, tensor.storage_offset()) for index, tensor in enumerate(call.read)]
        else:
            tensors = [(inputs.index(one), t.storage_offset()) for one, t in zip(call.stored, call.read, strict=True)]
        if plan.args is None:
            plan.keep_arguments(call.args, call.kwargs)
        operation = Operation(call.func, plan, contents, tensors, state)
        if call.written:
            operation.written = [inputs.index(one) for one in call.written]
        reference = weakref.ref(operation)
        for value in contents:
            value.users.append(reference)
            if value.operation is None and value.kept is None and value.stored is not None:
                value.kept = value.stored()
        return operation


class _Call:
    """A call of an operation. `read`: the tensors among its arguments, with those that it modifies; `stored`: their storages."""

    __slots__ = (
        "args", "blind", "contents", "facts", "func", "inputs", "kwargs", "plan", "read", "read_again", "stored", "tracked",
        "written",
    )  # fmt: skip

    def __init__(
        self, func: Any, facts: Facts, args: Any, kwargs: dict[str, Any], plan: AllocationPlan, read: list[Tensor],
        stored: list[Stored], inputs: list[Stored], tracked: bool,
    ) -> None:  # fmt: skip
        self.func, self.facts, self.args, self.kwargs, self.plan = func, facts, args, kwargs, plan
        self.read, self.stored = read, stored
        self.inputs = inputs  # the storages, each once
        self.tracked = tracked  # it may be recorded
        self.read_again = False  # results that can be evicted depend on tensors that the call modifies
        self.blind = False  # no result depends on tensors that the call modifies (running means of batch normalisation)
        self.written: list[Stored] = []
        self.contents: list[Value] | None = None  # of `inputs` before the call, if they are locked


class _Forget:
    """Called in a forked process: switches the runtime off there. It has only a weak reference to the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = weakref.ref(runtime)

    def __call__(self) -> None:
        runtime = self._runtime()
        if runtime is not None:
            runtime._inert = True


def _unseen(stored: Stored) -> Value:
    """Return a value that stands for the content that a storage has when an operation reads it, whatever the content is then."""
    value = Value(stored.bytes)
    value.stored, value.kept = stored, stored()
    return value


def _fresh_storages(result: Any) -> list[UntypedStorage]:
    """Return the storages of an operation's results, in order, without those that the runtime already follows."""
    if isinstance(result, Tensor):
        result = (result,)
    elif not isinstance(result, (list, tuple)):
        return []
    storages = [storage_of(tensor) for tensor in tensors_in(result) if is_plain(tensor)]
    if len(storages) > 1:
        storages = list(dict.fromkeys(storages))
    return [storage for storage in storages if not hasattr(storage, "_iotwin_dtr")]
