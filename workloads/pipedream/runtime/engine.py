"""Trains one rank of a pipeline: forward and backward passes in the order of the plan, each with the version it names."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed
from torch.func import functional_call

from iotwin.common.errors import UsageError
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.pipedream.runtime.links import Links
from iotwin.workloads.pipedream.runtime.stages import SplitModel, StageModule
from iotwin.workloads.pipedream.runtime.weights import Optimizer, Weights, WeightVersions
from iotwin.workloads.policies.pipeline import PipelinePlan, order, versions

Load = Callable[[int], tuple[Sequence[Tensor], Sequence[Tensor]]]  # minibatch -> the model's inputs, and the loss's targets
Criterion = Callable[..., Tensor]  # (model's output, *targets) -> a scalar
TARGET = "target"  # name of the i-th target's tensor, before i


@dataclass(frozen=True)
class Training:
    """What all ranks of a pipeline agree on. `targets` is the number of tensors that the loss needs besides the model's output.

    With `vertical_sync`, all stages use the version that stage 0 used. With `recompute`, the backward pass repeats the forward
    pass, so that activations need no memory between the two.
    """

    plan: PipelinePlan
    model: SplitModel
    criterion: Criterion
    targets: int = 1
    vertical_sync: bool = False
    recompute: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise UsageError if the plan's replicas cannot be synchronised vertically."""
        if self.vertical_sync and len({stage.replicas for stage in self.plan.stages}) > 1:
            raise UsageError("vertical sync needs as many replicas in each stage; leave it out for this plan")

    def used_versions(self, stage: int, replica: int, minibatches: int) -> list[int]:
        """Return the version that each minibatch of a rank uses."""
        return versions(self.plan, 0 if self.vertical_sync else stage, replica, minibatches)

    def update_of(self, stage: int, minibatch: int) -> int:
        """Return the index of the update that a minibatch's gradient contributes to."""
        grouped = self.plan.schedule in ("gpipe", "flush", "2bw")
        return minibatch // (self.plan.group if grouped else self.plan.stages[stage].replicas)

    def edges(self) -> list[tuple[str, int, int]]:
        """Return each tensor that crosses stages as (name, stage that sends it, stage that receives it)."""
        names = [*self.model.inputs, *(name for stage in self.model.stages for name in stage.outputs)]
        last = len(self.model.stages) - 1
        targets = [(f"{TARGET}{index}", 0, last) for index in range(self.targets if last else 0)]
        return [(name, self.model.producer(name), to) for name in names for to in self.model.consumers(name)] + targets


def seed_pass(seed: int, stage: int, minibatch: int) -> None:
    """Seed torch for one forward pass, so that dropout depends on nothing but these three numbers."""
    torch.manual_seed((seed * 1_000_003 + minibatch) * 1_009 + stage)


@dataclass
class _InFlight:
    """A minibatch between its forward and its backward pass."""

    weights: Weights
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    loss: Tensor | None


@dataclass
class StageRank:
    """One rank of a pipeline. `group` contains the ranks of the same stage; None if it has one rank."""

    training: Training
    rank: int
    optimizer: Optimizer
    group: distributed.ProcessGroup | None = None
    parts: Parts = field(default_factory=lambda: Parts(False))

    def __post_init__(self) -> None:
        """Find the rank's stage and the tensors that it sends and receives."""
        plan = self.training.plan
        self.stage = next(stage.stage for stage in plan.stages if self.rank in stage.ranks)
        self.replica = plan.stages[self.stage].ranks.index(self.rank)
        self.weights = WeightVersions(self._module.module, self.optimizer)
        self.losses: dict[int, float] = {}
        self.versions_used: dict[int, int] = {}
        edges = list(enumerate(self.training.edges()))
        self._links = Links(len(edges))
        self._to_me = {name: (edge, sender) for edge, (name, sender, to) in edges if to == self.stage}
        self._from_me = [(edge, name, to) for edge, (name, sender, to) in edges if sender == self.stage]
        self._flying: dict[int, _InFlight] = {}
        self._sums: list[Tensor] | None = None

    @property
    def _module(self) -> StageModule:
        return self.training.model.stages[self.stage]

    @property
    def _is_last(self) -> bool:
        return self.stage == len(self.training.model.stages) - 1

    def train(self, load: Load, minibatches: int) -> None:
        """Train `minibatches` minibatches of the whole pipeline, of which this rank computes its share, and drain the pipeline.

        Only stage 0 calls `load`. Losses (last stage) and versions are in `losses` and `versions_used`, by minibatch.
        """
        plan, base = self.training.plan, self.weights.newest
        own = range(self.replica, minibatches, plan.stages[self.stage].replicas)
        planned = self.training.used_versions(self.stage, self.replica, minibatches)
        version_of = {minibatch: base + version for minibatch, version in zip(own, planned, strict=True)}
        passes = order(plan, self.stage, self.replica, minibatches)
        backward = [minibatch for kind, minibatch in passes if kind == "B"]
        updates = [self.training.update_of(self.stage, minibatch) for minibatch in backward]
        total = self.training.update_of(self.stage, minibatches - 1) + 1
        done = 0
        for kind, minibatch in passes:
            if kind == "F":
                self._forward(minibatch, version_of[minibatch], load)
                continue
            self._backward(minibatch)
            update = updates[done]
            done += 1
            if done == len(updates) or updates[done] != update:
                self._update(update, minibatches)
        for update in range(updates[-1] + 1 if updates else 0, total):  # other replicas have a minibatch more
            self._update(update, minibatches)
        self._links.settle()

    def _forward(self, minibatch: int, version: int, load: Load) -> None:
        inputs = self._inputs(minibatch, load)
        weights = self.weights.use(version)
        self.versions_used[minibatch] = version
        with self.parts.measure("F", **self._labels(minibatch, version)), torch.set_grad_enabled(not self.training.recompute):
            outputs, loss = self._compute(minibatch, weights, inputs)
        if loss is not None:
            self.losses[minibatch] = float(loss.detach())
        for edge, name, to in self._from_me:
            tensor = outputs[name] if name in outputs else inputs[name]
            needs = name in outputs and tensor.is_floating_point()
            self._links.send(tensor.detach().requires_grad_(needs), self._peer(to, minibatch), minibatch, edge)
        self._flying[minibatch] = _InFlight(weights, inputs, {} if self.training.recompute else outputs, loss)

    def _inputs(self, minibatch: int, load: Load) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        if self.stage == 0:
            with self.parts.measure("data_wait", **self._labels(minibatch)):
                read, targets = load(minibatch)
            inputs |= dict(zip(self.training.model.inputs, read, strict=True))
            inputs |= {f"{TARGET}{index}": target for index, target in enumerate(targets)}
        for name, (edge, sender) in self._to_me.items():
            with self.parts.measure("recv_act", **self._labels(minibatch)):
                inputs[name] = self._links.receive(self._peer(sender, minibatch), minibatch, edge)
        return inputs

    def _compute(self, minibatch: int, weights: Weights, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """Run the stage's layers, and the loss in the last stage."""
        seed_pass(self.training.seed, self.stage, minibatch)
        # A copy, since the first layer may write to its input in place, which torch forbids for a leaf that requires a gradient.
        arguments = [inputs[name].clone() if inputs[name].requires_grad else inputs[name] for name in self._module.inputs]
        result = functional_call(self._module.module, weights, tuple(arguments))
        results = result if isinstance(result, tuple) else (result,)
        outputs = dict(zip(self._module.outputs, results, strict=True))
        if not self._is_last:
            return outputs, None
        targets = [inputs[f"{TARGET}{index}"] for index in range(self.training.targets)]
        return outputs, self.training.criterion(outputs[self.training.model.output], *targets)

    def _backward(self, minibatch: int) -> None:
        flying = self._flying.pop(minibatch)
        arrived = self._gradients_of_outputs(minibatch)
        with self.parts.measure("B", **self._labels(minibatch, self.versions_used[minibatch])):
            outputs, loss = flying.outputs, flying.loss
            if self.training.recompute:
                outputs, loss = self._recomputed(minibatch, flying)
            ends: list[Tensor] = [outputs[name] for name in arrived if outputs[name].requires_grad]
            starts: list[Tensor | None] = [arrived[name] for name in arrived if outputs[name].requires_grad]
            if loss is not None:
                ends, starts = [*ends, loss], [*starts, None]
            wanted = [name for name, tensor in flying.inputs.items() if tensor.requires_grad]
            into = [*flying.weights.values(), *(flying.inputs[name] for name in wanted)]
            found = torch.autograd.grad(ends, into, starts, allow_unused=True)
        gradients = [torch.zeros_like(of) if each is None else each for of, each in zip(into, found, strict=True)]
        for name, gradient in zip(wanted, gradients[len(flying.weights) :], strict=True):
            edge, sender = self._to_me[name]
            self._links.send(gradient, self._peer(sender, minibatch), minibatch, edge, backward=True)
        self._accumulate(gradients[: len(flying.weights)])

    def _recomputed(self, minibatch: int, flying: _InFlight) -> tuple[dict[str, Tensor], Tensor | None]:
        """Repeat a forward pass with the same weights and random numbers. Buffers such as running means keep their values."""
        buffers = {name: buffer.clone() for name, buffer in self._module.module.named_buffers()}
        return self._compute(minibatch, flying.weights | buffers, flying.inputs)

    def _gradients_of_outputs(self, minibatch: int) -> dict[str, Tensor]:
        """Receive the gradients of the outputs, and return their sums over the stages that received the output."""
        found: dict[str, Tensor] = {}
        for edge, name, to in self._from_me:
            if name not in self._module.outputs:
                continue
            with self.parts.measure("recv_grad", **self._labels(minibatch)):
                gradient = self._links.receive(self._peer(to, minibatch), minibatch, edge, backward=True)
            found[name] = found[name] + gradient if name in found else gradient
        return found

    def _accumulate(self, gradients: list[Tensor]) -> None:
        if self._sums is None:
            self._sums = gradients
        else:
            self._sums = [total.add_(gradient) for total, gradient in zip(self._sums, gradients, strict=True)]

    def _update(self, update: int, minibatches: int) -> None:
        """Average the gradients of an update over its minibatches, those of other replicas too, and make the next version."""
        of_update = sum(self.training.update_of(self.stage, minibatch) == update for minibatch in range(minibatches))
        sums = self._sums
        self._sums = None
        if sums is None:
            sums = [torch.zeros_like(weight) for weight in self.weights.latest().values()]
        with self.parts.measure("opt_step", **self._labels(update)):
            if self.group is not None and sums:
                flat = torch.cat([gradient.reshape(-1) for gradient in sums])
                distributed.all_reduce(flat, group=self.group)
                pieces = flat.split([gradient.numel() for gradient in sums])
                sums = [piece.view_as(gradient) for piece, gradient in zip(pieces, sums, strict=True)]
            self.weights.update([gradient.div_(of_update) for gradient in sums] if of_update > 1 else sums)

    def _peer(self, stage: int, minibatch: int) -> int:
        return self.training.plan.rank_of(stage, minibatch)

    def _labels(self, minibatch: int, version: int | None = None) -> dict[str, int]:
        labels = {"stage": self.stage, "replica": self.replica, "minibatch": minibatch}
        return labels if version is None else labels | {"version": version}
