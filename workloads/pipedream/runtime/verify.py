"""Compares the weights of a pipeline's ranks after a run with those of one process that follows the formula of stale weights.

``python -m iotwin.workloads.pipedream.runtime.verify OPTIONS`` is one rank of `verify`. It prints what it found as a JSON line.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, distributed

from iotwin.common.errors import IotwinError
from iotwin.common.files import scratch_folder
from iotwin.common.ranks import claimed_ports
from iotwin.common.untrusted_files import decode_foreign, read_foreign_end
from iotwin.workloads.common.torch_ranks import join_ranks
from iotwin.workloads.launch import local_plan
from iotwin.workloads.models import MODELS, build
from iotwin.workloads.pipedream.converter.stages import planned_split
from iotwin.workloads.pipedream.plan.plan_file import read_plan
from iotwin.workloads.pipedream.runtime.engine import Load, StageRank, Training, training_of
from iotwin.workloads.pipedream.runtime.groups import stage_group
from iotwin.workloads.pipedream.runtime.staleness import train_alone
from iotwin.workloads.pipedream.runtime.weights import SgdVersions
from iotwin.workloads.policies.pipeline import PipelinePlan

_LEARNING_RATE = 0.05
_MOST_LOG_BYTES = 1 << 26
_REPLICA_TOLERANCE = 1e-6  # sums over replicas are in another order than in one process


class RankResult(msgspec.Struct):
    """What one rank found. `max_difference` is the largest difference of its stage's weights from the expected weights.

    If a weight is not a number, `max_difference` is the largest float. `versions_used` has the version that this rank used, by
    minibatch. `expected_versions` has a list for each stage, with the version that the formula requires for each minibatch.
    """

    max_difference: float
    versions_used: dict[int, int]
    expected_versions: list[list[int]]


@dataclass(frozen=True)
class Verification:
    """The options of a verification. `plan` is the path of a plan.json or conf.json, `module` the name of a model of the zoo."""

    plan: str
    module: str = "mlp4"
    minibatches: int = 40
    schedule: str | None = None
    vertical_sync: bool = False
    recompute: bool = False

    def training(self) -> Training:
        """Return the training that these options specify. Raises UsageError if the plan or the model is unusable.

        Each stage gets the plan's layers. If the plan is of another model, all stages get about equally many layers.
        """
        plan = read_plan(Path(self.plan))
        plan = replace(plan, schedule=self.schedule or plan.schedule)
        torch.manual_seed(0)
        built = build(self.module)
        if planned_split(built.module, plan) is None:
            plan = replace(plan, stages=tuple(replace(stage, nodes=(), kinds=()) for stage in plan.stages))
        return training_of(built, plan, range(len(plan.stages)), 0, self.recompute, self.vertical_sync)

    def load(self, training: Training) -> Load:
        """Return a function that makes the data of a minibatch, the same in every process."""
        make_inputs, count, batch = build(self.module).make_inputs, len(training.model.inputs), MODELS[self.module]

        def load(minibatch: int) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
            torch.manual_seed(minibatch + 1)
            tensors = make_inputs(batch)
            return tensors[:count], tensors[count:]

        return load


def verify(options: Verification, limit_s: float = 600.0) -> dict[str, Any]:
    """Train with one process per rank, and return {"equal", "max_difference", "split", "versions_used", "expected_versions"}.

    The versions are lists by stage, one number per minibatch. "split" is "plan" if the stages have the plan's layers, else
    "equal". With replicas, "equal" allows for a difference of 1e-6.
    Raises UsageError for bad options, IotwinError if a rank fails.
    """
    training = options.training()
    given = [f"{field.name}={value}" for field in fields(options) if (value := getattr(options, field.name)) is not None]
    with scratch_folder() as folder, claimed_ports(training.plan.ranks) as port:
        ending = local_plan([__name__, *given], training.plan.ranks, port, folder, limit_s).run()
        if ending.reason or ending.exit_status:
            raise IotwinError(ending.reason or "a rank failed")
        found = [_read(folder / f"rank-{rank}.log") for rank in range(training.plan.ranks)]
    return _summary(training.plan, found, options.minibatches)


def _read(log: Path) -> RankResult:
    """Return what a rank printed on the last line of its log."""
    lines = read_foreign_end(log, _MOST_LOG_BYTES).strip().splitlines()
    return decode_foreign((lines[-1] if lines else "").encode(), RankResult, log.name)


def _summary(plan: PipelinePlan, ranks: list[RankResult], minibatches: int) -> dict[str, Any]:
    used: dict[str, list[int]] = {}
    for stage in plan.stages:
        by_minibatch = {key: value for rank in stage.ranks for key, value in ranks[rank].versions_used.items()}
        used[str(stage.stage)] = [by_minibatch[minibatch] for minibatch in range(minibatches)]
    expected = {str(stage): each for stage, each in enumerate(ranks[0].expected_versions)}
    largest = max(rank.max_difference for rank in ranks)
    allowed = _REPLICA_TOLERANCE if any(stage.replicas > 1 for stage in plan.stages) else 0.0
    return {
        "equal": largest <= allowed and used == expected,
        "max_difference": largest,
        "split": "plan" if any(stage.nodes for stage in plan.stages) else "equal",
        "versions_used": used,
        "expected_versions": expected,
    }


def run_rank(options: Verification) -> RankResult:
    """Train as one rank, and compare the weights of its stage."""
    torch.set_num_threads(1)  # the ranks share the machine's processors
    training = options.training()
    load = options.load(training)
    with join_ranks(gpu=False) as ranks:
        alone, expected = train_alone(training, load, options.minibatches, _torch_optimizer(training.plan))
        trained = StageRank(training, ranks.rank, SgdVersions(_LEARNING_RATE), stage_group(training.plan, ranks.rank))
        trained.optimizer.lr = _rate(training.plan, trained.stage)
        trained.train(load, options.minibatches)
        differences = [
            float((value - alone[trained.stage][name]).detach().abs().max()) for name, value in trained.weights.latest().items()
        ]
        distributed.barrier()
    largest = max(differences, default=0.0)
    return RankResult(largest if math.isfinite(largest) else sys.float_info.max, trained.versions_used, expected)


def _rate(plan: PipelinePlan, stage: int) -> float:
    """Return a stage's learning rate, which is proportional to its replicas, as in the original."""
    return _LEARNING_RATE * plan.stages[stage].replicas / plan.stages[0].replicas


def _torch_optimizer(plan: PipelinePlan) -> Any:
    def make(parameters: Iterable[Tensor], stage: int) -> torch.optim.Optimizer:
        own = list(parameters) or [torch.zeros(1)]
        return torch.optim.SGD(own, _rate(plan, stage), momentum=0.9, weight_decay=1e-4)

    return make


def _parse(arguments: list[str]) -> Verification:
    values: dict[str, Any] = {}
    for argument in arguments:
        name, _, text = argument.partition("=")
        values[name] = text
    flags = {name: values[name] == "True" for name in ("vertical_sync", "recompute") if name in values}
    return Verification(**values | flags | {"minibatches": int(values["minibatches"])})


if __name__ == "__main__":
    print(msgspec.json.encode(run_rank(_parse(sys.argv[1:]))).decode(), flush=True)
