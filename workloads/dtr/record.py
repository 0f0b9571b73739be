"""The recorder: every operation of a PyTorch step, below autograd, as a log.

Times are of the operation alone. Storages are followed, not only tensors: what autograd keeps stays referenced until it lets go,
as each recorded tensor's end is the end of its Python object or, where only C++ holds it, of its storage.
"""

import time
import weakref
from pathlib import Path
from typing import Any

from common.errors import UsageError
from common.files import write_whole
from workloads.dtr.log_format import write_line


def record_model(
    name: str, output: Path, *, batch: int | None = None, preset: str = "tiny", fake: bool = False, warm_up: int = 1,
    device: str = "cpu", seed: int = 0,
) -> dict[str, Any]:  # fmt: skip
    """Log one training step (forward, loss, backward) of a model of `workloads.models`.

    Returns {"log", "model", "batch", "operators", "seconds", "overhead_us_per_op"}. With `fake` nothing is computed: shapes are
    propagated and times come from bytes moved and operations done, at 10 GB/s and 100 Gflop/s.
    """
    try:
        import torch
        from torch._subclasses.fake_tensor import FakeTensorMode
    except ImportError:
        raise UsageError("logging a model needs torch; install iotwin[torch]") from None
    from contextlib import nullcontext

    from workloads.models import MODELS, build

    torch.manual_seed(seed)
    samples = MODELS[name] if batch is None and name in MODELS else batch or 1
    with FakeTensorMode(allow_non_fake_inputs=True) if fake else nullcontext():
        with torch.device(device):
            module, make_inputs, loss = build(name, preset)
            inputs = make_inputs(samples)
        for _ in range(warm_up):
            with Recorder(fake).mode():
                loss(module, *inputs).backward()
            module.zero_grad(set_to_none=True)
        recorder = Recorder(fake)
        begin = time.perf_counter()
        with recorder.mode():
            value = loss(module, *inputs)
            recorder.annotate("BACKWARD")
            value.backward()
            del value
        seconds = time.perf_counter() - begin
        lines = recorder.finish()
    write_whole(output, b"".join(lines))
    beyond = (seconds - recorder.inside_ns / 1e9) / max(recorder.operations, 1) * 1e6
    return {
        "log": str(output), "model": name, "batch": samples, "operators": recorder.operations, "seconds": seconds,
        "overhead_us_per_op": beyond,
    }  # fmt: skip


class Recorder:
    """Gathers the lines of a log while its mode is active."""

    def __init__(self, fake: bool = False) -> None:
        self.lines: list[bytes] = [write_line("ANNOTATE", ANNOTATION="START")]
        self.operations = 0
        self.inside_ns = 0
        self._fake = fake
        self._names: dict[int, str] = {}  # id of a live tensor object: its name
        self._keys: dict[int, Any] = {}
        self._count = 0
        self._active = True

    def annotate(self, text: str) -> None:
        """Add an annotation."""
        self.lines.append(write_line("ANNOTATE", ANNOTATION=text))

    def finish(self) -> list[bytes]:
        """Stop listening and return the lines."""
        self._active = False
        return self.lines

    def mode(self) -> Any:
        """Return the dispatch mode that records."""
        from torch.utils._python_dispatch import TorchDispatchMode

        recorder = self

        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                return recorder.call(func, args, kwargs or {})

        return Mode()

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operation and write it down."""
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        read = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        names = [self._name(tensor) for tensor in read]
        begin = time.perf_counter_ns()
        result = func(*args, **kwargs)
        spent = time.perf_counter_ns() - begin
        self.inside_ns += spent
        self.operations += 1
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        cost = max(1, _estimate(read, made, str(func)) if self._fake else spent)
        changed = _mutated(func, args, kwargs, read)
        operator = str(func.overloadpacket.__name__)
        fresh = [tensor for tensor in made if id(tensor) not in self._names]
        if changed:
            self.lines.append(write_line("MUTATE", NAME=operator, ARGS=names, MUTATE=changed, TIME=cost))
        if fresh:
            self._write_call(operator, cost if not changed else 1, names, read, fresh)
        return result

    def _write_call(self, operator: str, cost: int, names: list[str], read: list[Any], fresh: list[Any]) -> None:
        storages = [tensor.untyped_storage()._cdata for tensor in read]
        results = [self._follow(tensor) for tensor in fresh]
        self.lines.append(write_line("CALL", NAME=operator, ARGS=names, RESULT=results, TIME=cost))
        own: set[int] = set()
        for tensor, name in zip(fresh, results, strict=True):
            storage = tensor.untyped_storage()
            alias = storages.index(storage._cdata) if storage._cdata in storages else -1
            size = 0 if storage._cdata in own else storage.nbytes()
            own.add(storage._cdata)
            self.lines += [write_line("MEMORY", NAME=name, MEMORY=size), write_line("ALIAS", NAME=name, ALIAS=alias)]

    def _name(self, tensor: Any) -> str:
        """Return a tensor's name; one that was there before is a constant."""
        if id(tensor) in self._names:
            return self._names[id(tensor)]
        name = self._follow(tensor)
        size = tensor.untyped_storage().nbytes()
        self.lines += [write_line("CONSTANT", NAME=name), write_line("MEMORY", NAME=name, MEMORY=size)]
        return name

    def _follow(self, tensor: Any) -> str:
        """Give a tensor a name that is released when its object ends."""
        self._count += 1
        name, key = f"x{self._count}", id(tensor)
        self._names[key] = name

        def ended() -> None:
            if self._names.get(key) == name:
                del self._names[key]
            if self._active:
                self.lines.append(write_line("RELEASE", NAME=name))

        weakref.finalize(tensor, ended).atexit = False
        return name


def _mutated(func: Any, args: Any, kwargs: dict[str, Any], read: list[Any]) -> list[int]:
    """Return the places among the tensors read of those that the operation's schema says it writes to."""
    from torch import Tensor

    places = {id(tensor): place for place, tensor in reversed(list(enumerate(read)))}
    found = []
    for position, argument in enumerate(func._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = [value] if isinstance(value, Tensor) else value if isinstance(value, (list, tuple)) else []
        found += [places[id(tensor)] for tensor in written if id(tensor) in places]
    return sorted(set(found))


def _estimate(read: list[Any], made: list[Any], name: str) -> int:
    """Return ns of an operation that was not run: bytes moved, and for products the multiplications."""
    moved = sum(t.numel() * t.element_size() for t in [*read, *made])
    flops = 0
    if any(word in name for word in ("mm", "conv", "linear")) and len(read) > 1:
        flops = (
            2 * max((t.numel() for t in made), default=0) * max(1, min(t.numel() for t in read[:2]) // max(read[0].shape[-1], 1))
        )
    return int(moved / 10 + flops / 100) + 1000
