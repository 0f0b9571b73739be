"""PipeDream's runtime: throughput of stages that sleep, predicted and measured times of partitions, weight versions, losses.

    python -m tests.perf.perf_pipedream_runtime [losses | rank]

Layers that sleep need no processor, so that four ranks measure the pipeline and not the machine. `rank` makes this one of them.
`losses` measures the losses alone, on which the machine's load has no effect.
"""

import gc
import json
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode

from iotwin.common.ranks import claimed_ports
from iotwin.datagen.generate import generate
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.workloads.common.torch_ranks import join_ranks
from iotwin.workloads.launch import local_plan
from iotwin.workloads.models import build
from iotwin.workloads.models.built import Built
from iotwin.workloads.pipedream.converter.stages import split
from iotwin.workloads.pipedream.runtime.engine import StageRank, Training, seed_pass, training_of
from iotwin.workloads.pipedream.runtime.weights import SgdVersions
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage
from iotwin.workloads.policies.pipeline_simulator import simulate
from tests.perf.figures import Figure
from tests.perf.records import record_figures

_RANKS = 4
_MINIBATCHES = 30
_FORWARD_S = (0.016, 0.008, 0.032, 0.008, 0.024, 0.016, 0.008, 0.024)  # of each layer; the backward pass takes twice as long
_PARTITIONS = 12
_EPOCHS = 12  # of plain SGD
_SEEDS = (1, 2, 3)  # the loss of an epoch differs from seed to seed by more than what stale weights change
_IMAGES, _CLASSES = 512, 4


class _Slept(torch.autograd.Function):
    """Passes a tensor and its gradient on, each after a sleep."""

    @staticmethod
    def forward(ctx, vectors, forward_s):  # type: ignore[no-untyped-def, override]
        ctx.backward_s = 2 * forward_s
        time.sleep(forward_s)
        return vectors.clone()

    @staticmethod
    def backward(ctx, gradient):  # type: ignore[no-untyped-def, override]
        time.sleep(ctx.backward_s)
        return gradient, None


class _Layer(nn.Module):
    def __init__(self, forward_s: float) -> None:
        super().__init__()
        self.linear, self.forward_s = nn.Linear(8, 8), forward_s

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        return _slept(self.linear(vectors), self.forward_s)


@torch.fx.wrap
def _slept(vectors: torch.Tensor, forward_s: float) -> torch.Tensor:
    return _Slept.apply(vectors, forward_s)


def _cuts() -> list[tuple[int, ...]]:
    """Partitions of the layers into four stages, spread over all of them: the index of the first layer of later stages."""
    found = list(combinations(range(1, len(_FORWARD_S)), _RANKS - 1))
    return [found[round(k)] for k in np.linspace(0, len(found) - 1, _PARTITIONS)]


def _plan(cuts: tuple[int, ...], schedule: str) -> PipelinePlan:
    ends = (0, *cuts, len(_FORWARD_S))
    times = [sum(_FORWARD_S[a:b]) for a, b in pairwise(ends)]
    return PipelinePlan(tuple(Stage(k, (k,), each, 2 * each) for k, each in enumerate(times)), schedule)


def _slept_s(cuts: tuple[int, ...], schedule: str, rank: int) -> float:
    """Return the seconds of a run on four ranks, after a run that warms up."""
    torch.manual_seed(0)
    module = nn.Sequential(*map(_Layer, _FORWARD_S))
    stage_of = [sum(layer >= cut for cut in cuts) for layer in range(len(_FORWARD_S)) for _ in range(2)]  # linear, sleep
    training = Training(_plan(cuts, schedule), split(module, stage_of), nn.functional.cross_entropy)
    stage = StageRank(training, rank, SgdVersions(0.01))
    data = (torch.randn(4, 8),), (torch.zeros(4, dtype=torch.int64),)
    stage.train(lambda _: data, _RANKS)
    distributed.barrier()
    begin_s = time.perf_counter()
    stage.train(lambda _: data, _MINIBATCHES)
    distributed.barrier()
    return time.perf_counter() - begin_s


def _accumulated(rank: int) -> int:
    """Train by GPipe. Return, on the last rank, how many losses differ from those of plain gradient accumulation."""
    plan = PipelinePlan(tuple(Stage(k, (k,), 1.0, 2.0) for k in range(_RANKS)), "gpipe")
    torch.manual_seed(0)
    built = build("mlp")
    stage = StageRank(training_of(built, plan, range(_RANKS)), rank, SgdVersions(0.05))

    def load(minibatch: int) -> Any:
        torch.manual_seed(minibatch)
        tensors = built.make_inputs(8)
        return tensors[:1], tensors[1:]

    stage.train(load, _MINIBATCHES)
    torch.manual_seed(0)
    plain = build("mlp")
    optimizer = torch.optim.SGD(plain.module.parameters(), 0.05, 0.9, weight_decay=1e-4)
    different = 0
    for minibatch in range(_MINIBATCHES):
        inputs, targets = load(minibatch)
        seed_pass(0, 0, minibatch)
        loss = plain.loss(plain.module, *inputs, *targets)
        different += rank == _RANKS - 1 and float(loss) != stage.losses[minibatch]
        loss.backward()
        if (minibatch + 1) % plan.group == 0:
            for parameter in plain.module.parameters():
                assert parameter.grad is not None
                parameter.grad /= plan.group
            optimizer.step()
            optimizer.zero_grad()
    return different


def run_rank() -> None:
    """Measure as one of four ranks. The last one prints the results."""
    torch.set_num_threads(1)
    equal = (2, 4, 6)
    with join_ranks(gpu=False) as ranks:
        found: dict[str, Any] = {"none": _slept_s(equal, "none", ranks.rank)}
        found["partitions"] = [_slept_s(cuts, "1f1b", ranks.rank) for cuts in _cuts()]
        found["1f1b"] = _slept_s(equal, "1f1b", ranks.rank)
        found["gpipe"] = _accumulated(ranks.rank)
        distributed.barrier()
    print(json.dumps(found), flush=True)


def _of_ranks(module: list[str], ranks: int, folder: Path) -> list[Any]:
    """Run a module as so many ranks, and return the JSON document that each prints last."""
    with claimed_ports(ranks) as port:
        ending = local_plan(module, ranks, port, folder).run()
    assert not ending.reason, ending.reason
    return [json.loads((folder / f"rank-{rank}.log").read_text().splitlines()[-1]) for rank in range(ranks)]


def _throughput() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory() as scratch:
        found = _of_ranks(["tests.perf.perf_pipedream_runtime", "rank"], _RANKS, Path(scratch))[-1]
    shape = f"{_RANKS} ranks, {_MINIBATCHES} minibatches, equal split of layers that sleep"
    yield Figure("sleeping stages: speed / one minibatch at a time", found["none"] / found["1f1b"], 2.0, False, shape)
    expected_s = simulate(_plan((2, 4, 6), "1f1b"), _MINIBATCHES).seconds
    yield Figure("sleeping stages: speed / simulated speed", expected_s / found["1f1b"], 0.95, False, shape)
    predicted = np.array([simulate(_plan(cuts, "1f1b"), _MINIBATCHES).seconds for cuts in _cuts()])
    measured = np.array(found["partitions"])
    errors = np.abs(measured / predicted - 1)
    detail = f"{_PARTITIONS} partitions, {measured.min():.2f} to {measured.max():.2f} s; largest error {errors.max():.1%}"
    yield Figure(
        "partitions: rank correlation of predicted and measured", _rank_correlation(predicted, measured), 0.95, False, detail
    )
    best = measured[predicted.argmin()] / measured.min()
    yield Figure("partitions: time of the predicted best / measured best", best, 1.05, detail=detail)
    yield Figure("gpipe: losses that differ from gradient accumulation", found["gpipe"], 0.0, detail=f"of {_MINIBATCHES}")


def _rank_correlation(first: np.ndarray, second: np.ndarray) -> float:
    """Return Spearman's rank correlation; equal values share the mean of their ranks."""
    ranks = []
    for values in (first, second):
        rounded = np.round(values, 9)
        ranks.append([(rounded < each).sum() + ((rounded == each).sum() - 1) / 2 for each in rounded])
    return float(np.corrcoef(*ranks)[0, 1])


class _Copies(TorchDispatchMode):
    """Counts the bytes of operations that copy a weight."""

    def __init__(self, stage: StageRank) -> None:
        super().__init__()
        self.stage, self.size_bytes = stage, 0

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):  # type: ignore[no-untyped-def, override]
        if operation.overloadpacket.__name__ in ("copy_", "clone", "_to_copy", "copy"):
            weights = {weight.untyped_storage().data_ptr() for weight in self.stage.weights.latest().values()}
            for each in arguments:
                if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() in weights:
                    self.size_bytes += each.nbytes
        return operation(*arguments, **(named or {}))


class _Counting(SgdVersions):
    """Counts the values of one weight that are alive at each update."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.seen: list[weakref.ref[torch.Tensor]] = []
        self.alive: list[int] = []

    def next_value(self, name, weight, gradient, out=None):  # type: ignore[no-untyped-def, override]
        value = super().next_value(name, weight, gradient, out)
        if name == "0.weight":
            self.seen += [weakref.ref(weight), weakref.ref(value)]
            self.alive.append(len({id(each()) for each in self.seen if each() is not None}))
        return value


def _versions() -> Iterator[Figure]:
    wrong, copied = 0, 0
    for depth in range(_RANKS):
        plan = PipelinePlan((Stage(0, (0,), 1.0, 1.0),), "1f1b", {0: depth})
        built: Built = build("mlp")
        optimizer = _Counting()
        stage = StageRank(training_of(built, plan, [0]), 0, optimizer)

        def load(_: int, built: Built = built) -> Any:
            tensors = built.make_inputs(4)
            return tensors[:1], tensors[1:]

        gc.collect()
        with _Copies(stage) as copies:
            stage.train(load, _MINIBATCHES)
        wrong, copied = max(wrong, abs(max(optimizer.alive) - plan.versions_kept(0))), copied + copies.size_bytes
    detail = f"warm-ups 0 to {_RANKS - 1}, at each of {_MINIBATCHES} updates"
    yield Figure("weight versions alive: largest difference from the plan's", wrong, 0.0, detail=detail)
    yield Figure("weights copied per minibatch, bytes", copied / _RANKS / _MINIBATCHES, 0.0, detail="clone and copy of torch")


def _losses() -> Iterator[Figure]:
    """Epochs of the pipeline until the loss that plain SGD has after _EPOCHS, the median of the seeds."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        generate(ImagenetLayout(classes=_CLASSES, scale=0.1), folder / "data", samples=_IMAGES, workers=1)
        stages = {str(k): [k] for k in range(_RANKS)}
        conf = {"module_to_stage_map": [*range(_RANKS), _RANKS - 1], "stage_to_rank_map": stages}
        (folder / "conf.json").write_text(json.dumps(conf))
        reached = []
        for seed in _SEEDS:
            words = ["iotwin.workloads.pipedream", "--module", "resnet18", "--preset", "tiny", "--data_dir", str(folder / "data"),
                     "-b", "8", "-j", "1", "--lr", "0.004", "--momentum", "0.5", "--seed", str(seed)]  # fmt: skip
            plain = _of_ranks([*words, "--epochs", str(_EPOCHS)], 1, folder)[0]["train_loss"]
            most = _EPOCHS + 4
            pipelined = _of_ranks(
                [*words, "--epochs", str(most), "--config_path", str(folder / "conf.json"), "--num_ranks_in_server", "2"],
                _RANKS,
                folder,
            )[-1]["train_loss"]
            reached.append(next((epoch + 1 for epoch, loss in enumerate(pipelined) if loss <= plain[-1]), most))
    detail = f"resnet18, {_IMAGES} images, median of seeds; {_EPOCHS} epochs of plain SGD, {reached} of the pipeline"
    yield Figure("epochs until plain SGD's loss / plain SGD's epochs", median(reached) / _EPOCHS, 1.2, detail=detail)


def measure() -> Iterator[Figure]:
    """Yield the figures."""
    yield from _versions()
    yield from _throughput()
    yield from _losses()


if __name__ == "__main__":
    if sys.argv[1:] == ["rank"]:
        run_rank()
    else:
        record_figures("pipedream_runtime", _losses() if sys.argv[1:] == ["losses"] else measure())
