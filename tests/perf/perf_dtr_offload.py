"""Saving evicted tensors to a file instead of computing them again: when it is faster, and why it is not elsewhere.

    python -m tests.perf dtr_offload

The file lies in the temporary folder. One network has convolutions, and one has matrix products, which take less time for each
byte of their results: most of them are computed again faster than the disk can write and read them.
"""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from statistics import median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from iotwin.workloads.dtr.live.session import Account, Rematerialize
from tests.perf.figures import Figure, interleaved, median_ratio

_WARM_UP, _STEPS, _ROUNDS = 1, 2, 3


def _products() -> tuple[nn.Module, torch.Tensor]:
    layers = [part for _ in range(16) for part in (nn.LayerNorm(512), nn.Linear(512, 512), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 512)


def _convolutions() -> tuple[nn.Module, torch.Tensor]:
    layers = [part for _ in range(12) for part in (nn.Conv2d(128, 128, 3, padding=1), nn.BatchNorm2d(128), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(2, 128, 32, 32)


# budgets are shares of the activations
_NETWORKS = (("matrix products", _products, 0.12), ("convolutions", _convolutions, 0.35), ("convolutions", _convolutions, 0.3))


def _train(make: Callable[[], tuple[nn.Module, torch.Tensor]], context: Any) -> float:
    """Return the median seconds of a step."""
    torch.manual_seed(0)
    network, batch = make()
    optimizer, times = torch.optim.SGD(network.parameters(), 0.01), []
    with context:
        for _ in range(_WARM_UP + _STEPS):
            begin = perf_counter()
            optimizer.zero_grad()
            network(batch).square().mean().backward()
            optimizer.step()
            times.append(perf_counter() - begin)
    return median(times[_WARM_UP:])


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name, make, share in _NETWORKS:
            _train(make, free := Rematerialize(None, device="cpu"))
            least, peak = free.account.least_bytes, free.account.peak_bytes
            accounts: list[Account] = []  # with a file

            def limited(folder: str | None, make: Any = make, budget: int = round(least + share * (peak - least)),
                        accounts: list[Account] = accounts) -> float:  # fmt: skip
                step_s = _train(make, session := Rematerialize(budget, device="cpu", offload=folder))
                accounts += [session.account] if folder else []
                return step_s

            again, saved, plain = interleaved(
                _ROUNDS,
                lambda run=limited: run(None),
                lambda run=limited: run(folder),
                lambda make=make: _train(make, nullcontext()),
            )
            yield Figure(
                f"dtr offload: {name} at {share} of the activations, computed again, step time", median_ratio(again, plain)
            )
            file = accounts[-1]
            moved = (file.offloaded_bytes + file.restored_bytes) / 2**20
            detail = f"{file.offloaded_bytes >> 20} MiB written, {file.restored_bytes >> 20} read"
            detail += f", {moved / file.offload_s:.0f} MiB/s with the measurement of its speed"
            yield Figure(
                f"dtr offload: {name} at {share} of the activations, with a file, step time",
                median_ratio(saved, plain),
                detail=detail,
            )
            yield Figure(
                f"dtr offload: {name} at {share} of the activations, step with a file over one that computes again",
                median_ratio(saved, again),
                None if make is _products else 1.0,
            )
            yield Figure(
                f"dtr offload: {name} at {share} of the activations, most bytes over the budget",
                max(a.over_budget for a in accounts),
                0,
            )
