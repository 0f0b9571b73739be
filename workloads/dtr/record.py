"""Records the operations of a PyTorch training step, below autograd, as a log for the simulator.

The recorded times exclude the recorder's own work. The log releases a tensor when its Python object is deleted. It releases a
tensor that autograd saves when autograd frees it.
"""

import time
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, manual_seed
from torch import device as torch_device
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from iotwin.common.files import write_whole
from iotwin.workloads.dtr.live.operations import tensors_in
from iotwin.workloads.dtr.live.values import storage_of
from iotwin.workloads.dtr.simulator.log_format import write_line
from iotwin.workloads.models import build, default_batch


def record_model(
    name: str, output: Path, *, batch: int | None = None, preset: str = "tiny", fake: bool = False, warm_up: int = 1,
    device: str = "cpu", seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Record one training step (forward, loss, backward) of a model of `iotwin.workloads.models`, and write its log to `output`.

    Returns {"log", "model", "batch", "operators", "seconds", "overhead_us_per_op"}. With `fake`, operations only compute the
    shapes of their results, and their times are estimated for a device with 10 GB/s and 100 Gflop/s.
    """
    manual_seed(seed)
    samples = batch or default_batch(name)
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        with torch_device(device):
            module, make_inputs, loss = build(name, preset)
            inputs = make_inputs(samples)
        for _ in range(warm_up):
            with Recorder(fake):
                loss(module, *inputs).backward()
            module.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        with Recorder(fake) as recorder:
            value = loss(module, *inputs)
            recorder.annotate("BACKWARD")
            value.backward()
            del value
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


class _TrackedTensor(weakref.ref[Tensor]):
    __slots__ = ("bytes", "key", "name", "storage")
    name: str
    key: int  # id() of the tensor
    storage: int  # address of its storage
    bytes: int  # size of its storage


class Recorder(TorchDispatchMode):
    """A context manager that collects a log instruction for every PyTorch operation. Only `finish` formats them, to save time.

    `clock_ns`: the clock whose progress during an operation is the operation's time.
    """

    def __init__(self, fake: bool = False, clock_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        super().__init__()
        self._clock_ns = clock_ns
        self.operations = 0
        self.logging_ns = 0  # time spent in the recorder itself, not in the operations
        self._instructions: list[tuple[str, dict[str, Any]]] = []
        self._fake = fake
        self._live: dict[int, _TrackedTensor] = {}
        self._count = 0
        self._active = True
        self.annotate("START")

    def annotate(self, text: str) -> None:
        """Add an ANNOTATE instruction with the annotation `text` to the log."""
        self._add("ANNOTATE", ANNOTATION=text)

    def finish(self) -> list[bytes]:
        """Stop recording and return the lines of the log, one per instruction."""
        self._active = False
        return [write_line(instruction, **fields) for instruction, fields in self._instructions]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False. If True, torch would call Python several times per operation to exclude it from torch.compile."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():  # a memory budget pins tensors whose storage somebody reads
            return self._recorded(func, args, kwargs)

    def _recorded(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operation, record it, and return its result."""
        entered = time.perf_counter_ns()
        operator, written = _facts(func)
        read = tensors_in(args)
        if kwargs:
            read += tensors_in(kwargs.values())
        sources = [self._live.get(id(tensor)) or self.constant(tensor) for tensor in read]
        begin, before = time.perf_counter_ns(), self._clock_ns()
        result = func(*args, **(kwargs or {}))
        cost = self._clock_ns() - before
        returned = time.perf_counter_ns()
        self.operations += 1
        made = tensors_in((result,))
        if self._fake:
            cost = _estimate(read, made, str(func))
        names = [source.name for source in sources]
        if written:
            indices = _written_indices(written, args, kwargs or {}, read)
            self._add("MUTATE", NAME=operator, ARGS=names, MUTATE=indices, TIME=max(1, cost))
            cost = 1
            for index in indices:
                _update_storage(sources[index], read[index])
        fresh = [tensor for tensor in made if id(tensor) not in self._live]
        if fresh:
            self._write_call(operator, max(1, cost), names, [source.storage for source in sources], fresh)
        self.logging_ns += begin - entered + time.perf_counter_ns() - returned
        return result

    def _write_call(self, operator: str, cost: int, names: list[str], storages: list[int], fresh: list[Any]) -> None:
        results = [self._follow(tensor) for tensor in fresh]
        self._add("CALL", NAME=operator, ARGS=names, RESULT=[result.name for result in results], TIME=cost)
        own: set[int] = set()
        for result in results:
            alias = storages.index(result.storage) if result.storage in storages else -1
            self._add("MEMORY", NAME=result.name, MEMORY=0 if result.storage in own else result.bytes)
            self._add("ALIAS", NAME=result.name, ALIAS=alias)
            own.add(result.storage)

    def _add(self, instruction: str, **fields: Any) -> None:
        self._instructions.append((instruction, fields))

    def constant(self, tensor: Any) -> _TrackedTensor:
        """Record a CONSTANT for a tensor that existed before the recording."""
        followed = self._follow(tensor)
        self._add("CONSTANT", NAME=followed.name)
        self._add("MEMORY", NAME=followed.name, MEMORY=followed.bytes)
        return followed

    def _follow(self, tensor: Any) -> _TrackedTensor:
        """Give `tensor` a name in the log. Record a RELEASE of that name when the tensor's Python object is deleted."""
        self._count += 1
        followed: _TrackedTensor = _TrackedTensor(tensor, self._ended)
        followed.name, followed.key = f"x{self._count}", id(tensor)
        _update_storage(followed, tensor)
        self._live[followed.key] = followed
        return followed

    def _ended(self, followed: Any) -> None:
        key = followed.key
        if self._live.get(key) is followed:  # otherwise a newer tensor has the same id() and took the entry
            del self._live[key]
        if self._active:
            self._add("RELEASE", NAME=followed.name)


def _update_storage(followed: _TrackedTensor, tensor: Any) -> None:
    """Set `followed.storage` and `followed.bytes` to the address and size of the storage that `tensor` uses now."""
    storage = storage_of(tensor)
    followed.storage, followed.bytes = storage._cdata, storage.nbytes()


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
