"""DTR's live runtime: what a memory budget costs, how exact it is, and how well the simulator predicts its cost.

    python -m tests.perf dtr_live

On a GPU (IOTWIN_DTR_DEVICE=cuda), layers are wider, and PyTorch's allocator is asked for the peak, too.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from iotwin.workloads.dtr.live.memory import BudgetError
from iotwin.workloads.dtr.live.session import Account, Rematerialize
from iotwin.workloads.dtr.live.train import BudgetedTraining, train
from iotwin.workloads.dtr.record import record_model
from iotwin.workloads.dtr.simulator.heuristics import HEURISTICS
from iotwin.workloads.dtr.simulator.log_format import read_log
from iotwin.workloads.dtr.simulator.simulate import SimulationSettings, simulate
from iotwin.workloads.models import MODELS, build
from tests.perf.figures import Figure, interleaved, median_ratio

_DEVICE = os.environ.get("IOTWIN_DTR_DEVICE", "cpu")
_WIDTH, _BATCH = (4096, 8192) if _DEVICE == "cuda" else (512, 768)
_LAYERS, _WARM_UP, _STEPS, _ROUNDS = 24, 2, 3, 3
_TABLE = ("transformer", "resnet18", "unet", "lstm", "gan", "gnmt")
_TABLE_SHARES, _TRAINED_STEPS = (0.9, 0.8, 0.7, 0.6), 10
_PREDICTED = ("resnet18", "transformer", "unet", "densenet121")


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear, self.drop = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, _WIDTH), nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's result."""
        return x + self.drop(nn.functional.gelu(self.linear(self.norm(x))))


@dataclass
class _LayersRun:
    """Steps of the network of 24 layers: the median seconds of a step, the account, and the weights."""

    step_s: float
    account: Account | None
    weights: list[Tensor]


def _layers(budget: int | str | None, **choice: Any) -> _LayersRun:
    torch.manual_seed(0)
    with torch.device(_DEVICE):
        network, batch = nn.Sequential(*[_Layer() for _ in range(_LAYERS)]), torch.randn(_BATCH, _WIDTH)
    optimizer, times = torch.optim.SGD(network.parameters(), 0.01), []
    context: Any = nullcontext() if budget == "plain" else Rematerialize(budget, device=_DEVICE, **choice)
    with context:
        for _ in range(_WARM_UP + _STEPS):
            begin = time.perf_counter()
            optimizer.zero_grad()
            loss = network(batch).square().mean()
            loss.backward()
            optimizer.step()
            loss.item()
            times.append(time.perf_counter() - begin)
    account = None if budget == "plain" else context.account
    return _LayersRun(median(times[_WARM_UP:]), account, [p.detach().cpu() for p in network.parameters()])


def _layer_figures() -> Iterator[Figure]:
    """The cost of budgets between all activations and a quarter of them."""
    plain, free = _layers("plain"), _layers(None).account
    fixed = free.least_bytes  # no step needs less: parameters, gradients and the largest operation
    for share, bound in ((0.9, 1.10), (0.5, 1.40), (0.25, None)):
        budget = round(fixed + share * (free.peak_bytes - fixed))
        runs: list[_LayersRun] = []

        def limited(budget: int = budget, runs: list[_LayersRun] = runs) -> float:
            runs.append(_layers(budget))
            return runs[-1].step_s

        limited_s, plain_s = interleaved(_ROUNDS, limited, lambda: _layers("plain").step_s)
        account = runs[-1].account
        equal = all(torch.equal(a, b) for a, b in zip(plain.weights, runs[-1].weights, strict=True))
        where = f"{_LAYERS} layers at {share} of the activations, {_DEVICE}"
        detail = f"{account.evictions} evictions; weights {'equal' if equal else 'NOT equal'}"
        yield Figure(f"dtr live: step time, {where}", median_ratio(limited_s, plain_s), bound, detail=detail)
        yield Figure(f"dtr live: peak over budget, {where}", max(r.account.over_budget for r in runs) / budget, 0)
        steps = _WARM_UP + _STEPS
        search = (account.search_s + account.cost_s) / steps / runs[-1].step_s
        yield Figure(f"dtr live: search and cost, share of a step, {where}", search, 0.05)


def _gradients(name: str, budget: int | str | None) -> tuple[list[Tensor | None], Account | None]:
    torch.manual_seed(0)
    with torch.device(_DEVICE):
        module, inputs, loss = build(name, "tiny")
        given = inputs(MODELS[name])
    context: Any = nullcontext() if budget == "plain" else Rematerialize(budget, device=_DEVICE)
    with context:
        for _ in range(_WARM_UP):
            module.zero_grad()
            loss(module, *given).backward()
    return [parameter.grad for parameter in module.parameters()], None if budget == "plain" else context.account


def _same(some: list[Tensor | None], others: list[Tensor | None]) -> bool:
    return all(a is b is None or torch.equal(a, b) for a, b in zip(some, others, strict=True))


def _table_figures() -> Iterator[Figure]:
    """Six models at four budgets: peaks and gradients. Gradients of a model whose plain runs differ are not compared."""
    refused, differing, unrepeatable = list[str](), list[str](), list[str]()
    kept = 0
    for name in _TABLE:
        expected, again = (_gradients(name, "plain")[0] for _ in range(2))
        if not _same(expected, again):
            unrepeatable.append(name)
        free = _gradients(name, None)[1]
        for share in _TABLE_SHARES:
            budget = round(free.least_bytes + share * (free.peak_bytes - free.least_bytes))
            try:
                found, account = _gradients(name, budget)
            except BudgetError:
                refused.append(f"{name} at {share}")
                continue
            kept += account.over_budget == 0
            if not _same(expected, found):
                differing.append(f"{name} at {share}")
    wrong = [each for each in differing if each.split(" at ")[0] not in unrepeatable]
    detail = f"plain runs differ from each other: {', '.join(unrepeatable)}; there {len(differing) - len(wrong)} differ, too"
    total = len(_TABLE) * len(_TABLE_SHARES)
    yield Figure(
        f"dtr live: budgets kept, of {total}", kept, total, at_most=False, detail="refused: " * bool(refused) + ", ".join(refused)
    )
    yield Figure(
        f"dtr live: wrong gradients, of {total - len(refused)}",
        len(wrong),
        0,
        detail=", ".join(wrong) + detail * bool(unrepeatable),
    )


def _prediction_figures() -> Iterator[Figure]:
    """The overhead that `dtr simulate` finds for a log of `dtr log`, against that of `dtr train` with the same budget."""
    with tempfile.TemporaryDirectory() as folder:
        for name in _PREDICTED:
            log = Path(folder) / f"{name}.log"
            record_model(name, log, device=_DEVICE)
            graph, training = read_log(log).graph, BudgetedTraining(name, steps=_TRAINED_STEPS, device=_DEVICE)
            free = train(training)
            for share in (0.9, 0.75, 0.6):
                budget = round(free["least_bytes"] + share * (free["peak_bytes"] - free["least_bytes"]))
                run = simulate(graph, SimulationSettings(HEURISTICS["DTREqClass"], budget))
                found = train(training, budget)
                predicted, measured = (run.clock - 1) / graph.compute_ns(), found["overhead"]
                detail = (
                    f"{predicted:.3f} for {measured:.3f}, {run.result}; computed again in a step: {run.rematerializations} for "
                    f"{found['rematerializations'] / _TRAINED_STEPS:.1f} operations"
                )
                label = f"dtr live: overhead predicted for {name} at {share}, relative error"
                yield Figure(label, abs(predicted / measured - 1), 0.15, detail=detail)


def measure() -> Iterator[Figure]:
    """Measure all figures. Convolutions on a GPU are only repeatable with this setting of PyTorch."""
    torch.backends.cudnn.deterministic = True
    yield from _layer_figures()
    yield from _table_figures()
    yield from _prediction_figures()
