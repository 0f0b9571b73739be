"""Records the operations of a PyTorch training step, below autograd, as a log for the simulator.

The log counts the same memory as a budget of `live`, so that one budget means the same for the simulation and the runtime.

The recorded times exclude the recorder's own work. The log releases a tensor when its Python object is deleted. It releases a
tensor that autograd saves when autograd frees it.
"""

import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, manual_seed
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from iotwin.common.files import write_whole
from iotwin.workloads.dtr.live.device_memory import usable_device
from iotwin.workloads.dtr.live.operations import facts_of, tensors_in
from iotwin.workloads.dtr.live.session import Rematerialize
from iotwin.workloads.dtr.live.train import sgd
from iotwin.workloads.dtr.live.values import storage_of
from iotwin.workloads.dtr.simulator.log_format import write_line
from iotwin.workloads.models import build, default_batch


def record_model(
    name: str, output: Path, *, batch: int | None = None, preset: str = "tiny", fake: bool = False, warm_up: int = 1,
    device: str = "cpu", seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Record one training step (forward, loss, backward) of a model of `iotwin.workloads.models`, and write its log to `output`.

    Returns {"log", "model", "batch", "operators", "seconds", "overhead_us_per_op"}. With `fake`, operations only compute the
    shapes of their results, and their times are estimated for a device with 10 GB/s and 100 Gflop/s. Views take no time.
    The `warm_up` steps before are those of `iotwin dtr train`: the tensors of its optimizer are constants of the log.
    """
    manual_seed(seed)
    samples = batch or default_batch(name)
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        with usable_device(device, present=not fake):
            module, make_inputs, loss = build(name, preset)
            inputs = make_inputs(samples)
        optimizer, step = sgd(module), partial(loss, module, *inputs)
        with nullcontext() if fake else Rematerialize(None, device=device) as session:
            for _ in range(warm_up):
                record_step(session, optimizer, step)
                optimizer.step()
                optimizer.zero_grad()
            begin = time.perf_counter()
            recorder = record_step(session, optimizer, step)[1]
            seconds = time.perf_counter() - begin
        lines = recorder.finish()
    write_whole(output, b"".join(lines))
    return {
        "log": str(output),
        "model": name,
        "batch": samples,
        "operators": recorder.operations,
        "seconds": seconds,
        "overhead_us_per_op": recorder.logging_ns / max(recorder.operations, 1) / 1e3,
    }


def record_step(
    session: Rematerialize | None, optimizer: torch.optim.Optimizer, step: Callable[[], Tensor]
) -> tuple[Tensor, "Recorder"]:
    """Run `step`, which returns a loss, and then the backward pass. Return the loss, and a recorder that has all operations.

    The log also has the tensors of the optimizer, which are in memory all the time. `session`: the budget in force; None if
    tensors are fake, which no budget can limit.
    """
    with Recorder(session, fake=session is None) as recorder:
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    recorder.constant(value)
        loss = step()
        recorder.annotate("BACKWARD")
        loss.backward()
    return loss, recorder


class _TrackedTensor(weakref.ref[Tensor]):
    __slots__ = ("bytes", "key", "name", "storage")
    name: str
    key: int  # id() of the tensor
    storage: int  # address of its storage
    bytes: int  # size of its storage


class Recorder(TorchDispatchMode):
    """A context manager that collects a log instruction for every PyTorch operation. Only `finish` formats them, to save time.

    `session`: a memory budget in force, which may be unlimited. The log then counts the bytes that the budget counts: with the
    allocator's rounding, what kernels allocate for themselves, and what was in memory before. None: tensors count their own
    bytes. `fake`: operations only compute shapes, so that their times are estimated.
    """

    def __init__(self, session: Rematerialize | None = None, *, fake: bool = False) -> None:
        super().__init__()
        self._session, self._fake = session, fake
        self._bytes_before = 0 if session is None else session.used_bytes  # bytes in memory before, without those of constants
        self.operations = 0
        self.logging_ns = 0  # time spent in the recorder itself, not in the operations
        self._instructions: list[tuple[str, dict[str, Any]]] = []
        self._live: dict[int, _TrackedTensor] = {}
        self._sharing: dict[int, dict[int, _TrackedTensor]] = {}  # those of `_live` by their storages
        self._count = 0
        self._active = True
        self.annotate("START")

    def annotate(self, text: str) -> None:
        """Add an ANNOTATE instruction with the annotation `text` to the log."""
        self._add("ANNOTATE", ANNOTATION=text)

    def finish(self) -> list[bytes]:
        """Stop recording and return the lines of the log, one per instruction."""
        self._active = False
        if self._bytes_before > 0:  # bytes of tensors that the step does not touch, and of the device's libraries
            size = {"NAME": "held", "MEMORY": self._bytes_before}
            self._instructions[1:1] = [("CONSTANT", {"NAME": "held"}), ("MEMORY", size)]
            self._bytes_before = 0
        return [write_line(instruction, **fields) for instruction, fields in self._instructions]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. If True, torch would call Python several times per operation to exclude it from torch.compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # a memory budget would pin the tensors whose storage is read here
            return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, record it, and return its result."""
        entered = time.perf_counter_ns()
        operator, written = _facts(func)
        read = tensors_in(args)
        if kwargs:
            read += tensors_in(kwargs.values())
        sources = [self._live.get(id(tensor)) or self.constant(tensor) for tensor in read]
        begin = time.perf_counter_ns()
        result = func(*args, **(kwargs or {}))
        returned = time.perf_counter_ns()
        self.operations += 1
        made = tensors_in((result,))
        cost, besides = returned - begin, 0
        if self._fake:
            cost = 0 if facts_of(func).view else _estimate(read, made, str(func))
        elif self._session is not None:
            cost, besides = self._session.take_latest_call()
        call = _LoggedCall(operator, max(1, cost), [source.name for source in sources], [source.storage for source in sources])
        if written:
            self._write_mutation(call, _written_indices(written, args, kwargs or {}, read), read)
            call = call._replace(cost=1)
        fresh = [tensor for tensor in made if id(tensor) not in self._live]
        if fresh or besides:
            self._write_call(call, fresh, besides)
        self.logging_ns += begin - entered + time.perf_counter_ns() - returned
        return result

    def _write_call(self, call: "_LoggedCall", fresh: list[Any], besides: int) -> None:
        """Log a call that returns the new tensors `fresh`.

        `besides`: bytes that the call's kernels take. They are logged as a result that is released at once.
        """
        results = [self._follow(tensor) for tensor in fresh]
        rows, own = list[tuple[str, int, int]](), set[int]()
        for result in results:
            alias = call.storages.index(result.storage) if result.storage in call.storages else -1
            rows.append((result.name, 0 if result.storage in own else result.bytes, alias))
            own.add(result.storage)
        if besides:
            rows.append((self._new_name(), besides, -1))
        self._add_call(call, rows)
        if besides:
            self._add("RELEASE", NAME=rows[-1][0])

    def _write_mutation(self, call: "_LoggedCall", indices: list[int], read: list[Any]) -> None:
        """Log a call that modifies the arguments `indices`. If other tensors share a storage with one, they are modified, too."""
        modified = {call.storages[index]: read[index] for index in indices}
        if all(len(self._sharing[storage]) == 1 for storage in modified):
            self._add("MUTATE", NAME=call.operator, ARGS=call.names, MUTATE=indices, TIME=call.cost)
        else:
            names = {storage: self._new_name() for storage in modified}
            self._add_call(call, [(name, self._bytes(modified[storage]), -1) for storage, name in names.items()])
            for storage, name in names.items():
                for shared in self._sharing[storage].values():
                    self._add("COPY_FROM", DST=shared.name, SRC=name)
                self._add("RELEASE", NAME=name)
        for index in indices:
            self._set_storage(self._live[id(read[index])], read[index])

    def _add_call(self, call: "_LoggedCall", rows: list[tuple[str, int, int]]) -> None:
        """Add a CALL with its results as (name, bytes, argument whose storage it shares)."""
        self._add("CALL", NAME=call.operator, ARGS=call.names, RESULT=[name for name, _, _ in rows], TIME=call.cost)
        for name, size, alias in rows:
            self._add("MEMORY", NAME=name, MEMORY=size)
            self._add("ALIAS", NAME=name, ALIAS=alias)

    def _add(self, instruction: str, **fields: Any) -> None:
        self._instructions.append((instruction, fields))

    def constant(self, tensor: Any) -> _TrackedTensor:
        """Record a tensor that existed before the recording: as a CONSTANT, or as a view of a tensor with the same storage."""
        followed = self._follow(tensor)
        others = [other.name for other in self._sharing[followed.storage].values() if other is not followed]
        if others:
            self._add_call(_LoggedCall("view", 1, others[:1], []), [(followed.name, 0, 0)])
            return followed
        self._bytes_before -= followed.bytes
        self._add("CONSTANT", NAME=followed.name)
        self._add("MEMORY", NAME=followed.name, MEMORY=followed.bytes)
        return followed

    def _follow(self, tensor: Any) -> _TrackedTensor:
        """Give `tensor` a name in the log. Record a RELEASE of that name when the tensor's Python object is deleted."""
        followed: _TrackedTensor = _TrackedTensor(tensor, self._ended)
        followed.name, followed.key, followed.storage = self._new_name(), id(tensor), 0
        self._set_storage(followed, tensor)
        self._live[followed.key] = followed
        return followed

    def _new_name(self) -> str:
        self._count += 1
        return f"x{self._count}"

    def _ended(self, followed: Any) -> None:
        key = followed.key
        if self._live.get(key) is followed:  # otherwise a newer tensor has the same id() and took the entry
            del self._live[key]
        self._leave_storage(followed)
        if self._active:
            self._add("RELEASE", NAME=followed.name)

    def _set_storage(self, followed: _TrackedTensor, tensor: Any) -> None:
        """Note the storage that `tensor` uses now, and its size."""
        self._leave_storage(followed)
        followed.storage, followed.bytes = storage_of(tensor)._cdata, self._bytes(tensor)
        self._sharing.setdefault(followed.storage, {})[id(followed)] = followed

    def _leave_storage(self, followed: Any) -> None:
        sharing = self._sharing.get(followed.storage)
        if sharing is not None:
            sharing.pop(id(followed), None)
            if not sharing:
                del self._sharing[followed.storage]

    def _bytes(self, tensor: Any) -> int:
        """Return the size of a tensor's storage, as the budget counts it."""
        return storage_of(tensor).nbytes() if self._session is None else self._session.storage_bytes(tensor)


class _LoggedCall(NamedTuple):
    """An operation that ran: its name, its time in ns, and the names and storages of the tensors that it read."""

    operator: str
    cost: int
    names: list[str]
    storages: list[int]


@cache
def _facts(func: Any) -> tuple[str, tuple[tuple[int, str], ...]]:
    """Return (name of an operation, arguments that it modifies in place as (position, name)), according to its torch schema."""
    written = [
        (position, argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return str(func.overloadpacket.__name__), tuple(written)


def _written_indices(written: tuple[tuple[int, str], ...], args: Any, kwargs: dict[str, Any], read: list[Any]) -> list[int]:
    index_of = {id(tensor): index for index, tensor in reversed(list(enumerate(read)))}
    values = [args[position] if position < len(args) else kwargs.get(name) for position, name in written]
    return sorted({index_of[id(tensor)] for tensor in tensors_in(values)})


def _estimate(read: list[Any], made: list[Any], name: str) -> int:
    """Return an operation's estimated ns, from the bytes that it reads and writes and the multiplications of matrix products."""
    moved = sum(t.numel() * t.element_size() for t in [*read, *made])
    flops = 0
    if any(word in name for word in ("mm", "conv", "linear")) and len(read) > 1:
        flops = (
            2 * max((t.numel() for t in made), default=0) * max(1, min(t.numel() for t in read[:2]) // max(read[0].shape[-1], 1))
        )
    return int(moved / 10 + flops / 100) + 1000
