"""DTR compared with what PyTorch itself has: its activation memory budget, and selective checkpointing of blocks.

    python -m tests.perf dtr_rivals

A rival trains first. DTR then has the bytes of the rival's peak as its budget. Memory is what PyTorch's allocator of the CPU
gives out in a step, by the events of its profiler, plus parameters and batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from iotwin.workloads.dtr.live.memory import BudgetError
from iotwin.workloads.dtr.live.session import Rematerialize
from iotwin.workloads.models import build
from tests.perf.figures import Figure

# Samples in a batch, by model.
_MODELS = {
    "resnet18": 96, "densenet121": 32, "inception_v3": 16, "unet": 16, "transformer": 64, "gpt": 64, "lstm": 64, "treelstm": 64,
}  # fmt: skip
_WARM_UP, _STEPS = 2, 5
_BUDGET = 0.5  # of torch's activation budget
_ATEN = torch.ops.aten
_SAVED = [_ATEN.convolution.default, _ATEN.mm.default, _ATEN.addmm.default, _ATEN.bmm.default]  # by selective checkpointing


@dataclass
class _Training:
    """A model in training by one method: the median seconds of a step, the most bytes of a step, and its gradients."""

    step_s: float
    peak_bytes: int
    gradients: list[Tensor | None]


def _trained(name: str, change: Callable[[nn.Module], None], budget: int | None = None) -> _Training:
    """Train a model that `change` has prepared; `budget`: within DTR's budget of so many bytes."""
    torch.manual_seed(0)
    module, inputs, loss_of = build(name, "tiny")
    given = inputs(_MODELS[name])
    change(module)

    def step() -> float:
        begin = perf_counter()
        torch.manual_seed(1)
        loss_of(module, *given).backward()
        return perf_counter() - begin

    def steps() -> tuple[float, int]:
        times = []
        for _ in range(_WARM_UP + _STEPS):
            module.zero_grad()
            times.append(step())
        module.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
        return median(times[_WARM_UP:]), _peak(profiler)

    if budget is None:
        step_s, peak = steps()
    else:
        with Rematerialize(budget, device="cpu"):
            step_s, peak = steps()
    fixed = [*module.parameters(), *module.buffers(), *given]
    peak += sum(tensor.numel() * tensor.element_size() for tensor in fixed)
    return _Training(step_s, peak, [parameter.grad for parameter in module.parameters()])


def _peak(profiler: Any) -> int:
    total = peak = 0
    for event in sorted(profiler.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
        if event.name() == "[memory]":
            total += event.nbytes()
            peak = max(peak, total)
    return peak


def _unchanged(module: nn.Module) -> None:
    pass


def _compiled(module: nn.Module, budget: float) -> None:
    torch._dynamo.reset()
    functorch.activation_memory_budget = budget
    module.compile(backend="aot_eager_decomp_partition")


def _checkpointed(module: nn.Module) -> None:
    """Checkpoint the blocks of a model selectively: the outermost members of its lists of modules."""
    for child in module.children():
        if isinstance(module, (nn.Sequential, nn.ModuleList)) and any(True for _ in child.parameters()):
            contexts = partial(create_selective_checkpoint_contexts, _SAVED)
            child.forward = partial(checkpoint, child.forward, use_reentrant=False, context_fn=contexts)
        else:
            _checkpointed(child)


def _difference(some: _Training, other: _Training) -> float:
    """Return the largest difference of two methods' gradients, as a share of the largest number of the gradient."""
    pairs = [(a, b) for a, b in zip(some.gradients, other.gradients, strict=True) if a is not None and b is not None]
    return max(float((a - b).abs().max() / a.abs().max().clamp(min=1e-30)) for a, b in pairs)


def _rivals(name: str, plain: _Training) -> Iterator[Figure]:
    """Yield a model's figures: of each rival, and of DTR within the same bytes."""
    unlimited = _trained(name, partial(_compiled, budget=1.0))
    rivals: dict[str, Callable[[nn.Module], None]] = {
        f"activation budget {_BUDGET}": partial(_compiled, budget=_BUDGET),
        "selective checkpointing": _checkpointed,
    }
    for rival, change in rivals.items():
        label = f"dtr rivals: {name}, {rival}"
        try:
            other = _trained(name, change)
        except RuntimeError as error:
            yield Figure(f"{label}, trainings that failed", 1.0, detail=str(error))
            continue
        plain_s = median((plain.step_s, _trained(name, _unchanged).step_s))
        detail = f"gradients off by {_difference(plain, other):.1e}"
        if change is not _checkpointed:
            detail += f", and by {_difference(unlimited, other):.1e} from those compiled without a budget"
        yield Figure(f"{label}, step time", other.step_s / plain_s, detail=detail)
        yield Figure(f"{label}, share of the peak", other.peak_bytes / plain.peak_bytes)
        try:
            ours = _trained(name, _unchanged, other.peak_bytes)
        except BudgetError as error:
            yield Figure(f"{label}, DTR's least budget over its bytes", error.least_bytes / other.peak_bytes, detail="refused")
            continue
        yield Figure(f"{label}, DTR in its bytes, step time", ours.step_s / plain_s)
        yield Figure(f"{label}, DTR in its bytes, peak over them with kernels", ours.peak_bytes / other.peak_bytes)
        yield Figure(f"{label}, DTR in its bytes, gradients off by", _difference(plain, ours), 0)


def measure() -> Iterator[Figure]:
    """Yield the figures of all models. Times are multiples of plain training's."""
    torch.set_num_threads(1)
    for name in _MODELS:
        yield from _rivals(name, _trained(name, _unchanged))
