"""Trains one rank of a pipeline: forward and backward passes in the order of the plan, with the versions that it requires."""

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, distributed
from torch.func import functional_call

from iotwin.common.errors import UsageError
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.models.built import Built
from iotwin.workloads.pipedream.converter.stages import SplitModel, StageModule, equal_split, planned_split, split
from iotwin.workloads.pipedream.runtime.links import Links
from iotwin.workloads.pipedream.runtime.weights import SgdVersions, Weights, WeightVersions
from iotwin.workloads.policies.pipeline import PipelinePlan, order, versions

Load = Callable[[int], tuple[Sequence[Tensor], Sequence[Tensor]]]  # minibatch -> the model's inputs, and the loss's targets
Criterion = Callable[..., Tensor]  # (model's output, *targets) -> a scalar
# Called after each forward pass with the minibatch and, in the last stage, the model's output, the targets and the loss.
Observe = Callable[[int, Tensor | None, Sequence[Tensor], float | None], None]
TARGET = "target"  # name of the i-th target's tensor, before i


@dataclass(frozen=True)
class Training:
    """The settings that all ranks of a pipeline share. `targets`: how many tensors the loss needs besides the model's output.

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
        return self.plan.update_of(stage, minibatch)

    def edges(self) -> list[tuple[str, int, int]]:
        """Return each tensor that crosses stages as (name, stage that sends it, stage that receives it)."""
        names = [*self.model.inputs, *(name for stage in self.model.stages for name in stage.outputs)]
        last = len(self.model.stages) - 1
        targets = [(f"{TARGET}{index}", 0, last) for index in range(self.targets if last else 0)]
        return [(name, self.model.producer(name), to) for name in names for to in self.model.consumers(name)] + targets


def training_of(
    built: Built, plan: PipelinePlan, modules: Sequence[int], seed: int = 0, recompute: bool = False, vertical_sync: bool = False
) -> Training:
    """Return the training of a model. If the plan's stages have layers (`nodes`), each stage gets these.

    Otherwise, the model is divided into as many equal parts as `modules` has entries. An entry is the stage of a part. Raises
    UsageError if the plan is of another model, if the model has too few layers, or if a stage needs a later one's output.
    """
    if any(stage.nodes for stage in plan.stages):
        if (stage_of := planned_split(built.module, plan)) is None:
            raise UsageError(
                f"the plan's {sum(len(stage.nodes) for stage in plan.stages)} layers are not those of the model; make the plan "
                "from the model's own profile, which iotwin pipedream profile measures"
            )
    else:
        stage_of = [modules[part] for part in equal_split(built.module, len(modules))]
    model = split(built.module, stage_of)
    count = len(model.inputs)

    def criterion(output: Tensor, *targets: Tensor) -> Tensor:
        return built.loss(lambda *_: output, *[None] * count, *targets)

    return Training(plan, model, criterion, len(built.make_inputs(1)) - count, vertical_sync, recompute, seed)


def seed_pass(seed: int, stage: int, minibatch: int) -> None:
    """Seed torch for one forward pass, so that dropout depends on nothing but these three numbers."""
    torch.manual_seed((seed * 1_000_003 + minibatch) * 1_009 + stage)


@dataclass
class _InFlight:
    """A minibatch between its forward and its backward pass. `differentiable` are the outputs whose gradient will arrive."""

    version: int
    weights: Weights
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    loss: Tensor | None
    differentiable: set[str]


@dataclass
class StageRank:
    """One rank of a pipeline. `group` contains the ranks of the same stage; None if it has one rank.

    `trained` counts the minibatches of the whole pipeline in earlier calls of `train`. `rate`, if set, returns the learning rate
    of an update from the update's index in the present call of `train`.
    """

    training: Training
    rank: int
    optimizer: SgdVersions
    group: distributed.ProcessGroup | None = None
    parts: Parts = field(default_factory=lambda: Parts(False))
    observe: Observe | None = None
    rate: Callable[[int], float] | None = None
    trained: int = 0

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
        self._awaited: deque[int] = deque()  # the versions of the next forward passes

    @property
    def _module(self) -> StageModule:
        return self.training.model.stages[self.stage]

    @property
    def _is_last(self) -> bool:
        return self.stage == len(self.training.model.stages) - 1

    def train(self, load: Load, minibatches: int) -> None:
        """Compute this rank's share of the next `minibatches` minibatches of the pipeline, and drain the pipeline.

        Only stage 0 calls `load`. This method adds to `versions_used` and, in the last stage, to `losses`. Their keys are
        minibatches, which count from 0 in each call.
        """
        plan, base = self.training.plan, self.weights.newest
        own = range(self.replica, minibatches, plan.stages[self.stage].replicas)
        planned = self.training.used_versions(self.stage, self.replica, minibatches)
        version_of = {minibatch: base + version for minibatch, version in zip(own, planned, strict=True)}
        passes = order(plan, self.stage, self.replica, minibatches)
        self._awaited.extend(version_of[minibatch] for kind, minibatch in passes if kind == "F")
        backward = [minibatch for kind, minibatch in passes if kind == "B"]
        updates = [self.training.update_of(self.stage, minibatch) for minibatch in backward]
        sizes = Counter(self.training.update_of(self.stage, minibatch) for minibatch in range(minibatches))
        done = 0
        for (kind, minibatch), following in zip(passes, [*passes[1:], None], strict=True):
            if following is not None:
                self._expect(*following)
            if kind == "F":
                self._forward(minibatch, version_of[minibatch], load)
                continue
            self._backward(minibatch)
            update = updates[done]
            done += 1
            if done == len(updates) or updates[done] != update:
                self._update(update, sizes[update])
        # These updates have no minibatch of this rank, but it averages gradients with the other replicas.
        for update in range(updates[-1] + 1 if updates else 0, len(sizes)):
            self._update(update, sizes[update])
        self._links.settle()
        self.trained += minibatches

    def _expect(self, kind: str, minibatch: int) -> None:
        """Begin to receive the inputs of the next pass, so that they arrive while this rank computes the present pass."""
        if kind == "F":
            for edge, sender in self._to_me.values():
                self._links.expect(self._peer(sender, minibatch), minibatch, edge)
        elif minibatch in self._flying:  # gradients can be expected only after the minibatch's forward pass
            for edge, name, to in self._from_me:
                if name in self._flying[minibatch].differentiable:
                    self._links.expect(self._peer(to, minibatch), minibatch, edge, backward=True)

    def evaluate(self, load: Load, minibatches: int) -> None:
        """Compute the forward passes of `minibatches` minibatches with the newest weights, without any update.

        No stage runs ahead: after its warm-up, a rank waits for an acknowledgement of its oldest minibatch before the next one.
        Acknowledgements travel from the last stage to the first, as gradients do.
        """
        weights, module = self.weights.latest(), self._module.module
        module.eval()
        for kind, minibatch in order(self.training.plan, self.stage, self.replica, minibatches, "1f1b"):
            if kind == "B":
                self._acknowledge(minibatch)
                continue
            inputs = self._inputs(minibatch, load)
            with self.parts.measure("eval_F", **self.labels(minibatch, self.weights.newest)), torch.no_grad():
                outputs, loss = self._compute(minibatch, weights, inputs)
            self._send_outputs(minibatch, inputs, outputs)
            self._report(minibatch, inputs, outputs, loss)
        self._links.settle()
        module.train()

    def _acknowledge(self, minibatch: int) -> None:
        for edge, _, to in self._from_me:
            self._links.receive(self._peer(to, minibatch), minibatch, edge, backward=True)
        for edge, sender in self._to_me.values():
            self._links.send(torch.zeros(()), self._peer(sender, minibatch), minibatch, edge, backward=True)

    def _forward(self, minibatch: int, version: int, load: Load) -> None:
        inputs = self._inputs(minibatch, load)
        weights = self.weights.use(version)
        self._awaited.popleft()
        self.versions_used[minibatch] = version
        with self.parts.measure("F", **self.labels(minibatch, version)), torch.set_grad_enabled(not self.training.recompute):
            outputs, loss = self._compute(minibatch, weights, inputs)
        sent = self._send_outputs(minibatch, inputs, outputs)
        self._report(minibatch, inputs, outputs, loss)
        self._flying[minibatch] = _InFlight(version, weights, inputs, {} if self.training.recompute else outputs, loss, sent)

    def _send_outputs(self, minibatch: int, inputs: dict[str, Tensor], outputs: dict[str, Tensor]) -> set[str]:
        """Send what later stages need. Return the names of the tensors whose receivers will send a gradient back."""
        differentiable = set()
        for edge, name, to in self._from_me:
            tensor = outputs[name] if name in outputs else inputs[name]
            if needs := name in outputs and tensor.is_floating_point():
                differentiable.add(name)
            with self.parts.measure("send_act", **self.labels(minibatch, size_bytes=tensor.nbytes)):
                self._links.send(tensor.detach().requires_grad_(needs), self._peer(to, minibatch), minibatch, edge)
        return differentiable

    def _report(self, minibatch: int, inputs: dict[str, Tensor], outputs: dict[str, Tensor], loss: Tensor | None) -> None:
        output, targets, value = (
            None,
            [inputs[f"{TARGET}{index}"] for index in range(self.training.targets * self._is_last)],
            None,
        )
        if loss is not None:
            output, value = outputs[self.training.model.output].detach(), float(loss.detach())
            self.losses[minibatch] = value
        if self.observe is not None:
            self.observe(minibatch, output, targets, value)

    def _inputs(self, minibatch: int, load: Load) -> dict[str, Tensor]:
        inputs: dict[str, Tensor] = {}
        if self.stage == 0:
            with self.parts.measure("data_wait", **self.labels(minibatch)):
                read, targets = load(minibatch)
            inputs |= dict(zip(self.training.model.inputs, read, strict=True))
            inputs |= {f"{TARGET}{index}": target for index, target in enumerate(targets)}
        for name, (edge, sender) in self._to_me.items():
            inputs[name] = self._receive("recv_act", minibatch, edge, sender)
        return inputs

    def _receive(self, part: str, minibatch: int, edge: int, stage: int) -> Tensor:
        """Receive a tensor from the rank of `stage` that computes the minibatch, and log the wait as `part`."""
        begin_ns = time.monotonic_ns()
        tensor = self._links.receive(self._peer(stage, minibatch), minibatch, edge, backward=part == "recv_grad")
        took_ns = time.monotonic_ns() - begin_ns
        self.parts.log(part, begin_ns, took_ns, **self.labels(minibatch, size_bytes=tensor.nbytes))
        return tensor

    def _compute(self, minibatch: int, weights: Weights, inputs: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
        """Run the stage's layers, and the loss in the last stage."""
        seed_pass(self.training.seed, self.stage, self.trained + minibatch)
        # A copy, since the first layer may write to its input in place, which torch forbids for a leaf that requires a gradient.
        arguments = [inputs[name].clone() if inputs[name].requires_grad else inputs[name] for name in self._module.inputs]
        result = functional_call(self._module.module, weights, tuple(arguments))
        results = result if isinstance(result, tuple) else (result,)
        outputs = dict(zip(self._module.outputs, results, strict=True))
        if not self._is_last:
            return outputs, None
        return outputs, self.training.criterion(outputs[self.training.model.output], *self._targets(inputs))

    def _targets(self, inputs: dict[str, Tensor]) -> list[Tensor]:
        return [inputs[f"{TARGET}{index}"] for index in range(self.training.targets)]

    def _backward(self, minibatch: int) -> None:
        flying = self._flying.pop(minibatch)
        arrived = self._gradients_of_outputs(minibatch, flying.differentiable)
        with self.parts.measure("B", **self.labels(minibatch, self.versions_used[minibatch])):
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
            with self.parts.measure("send_grad", **self.labels(minibatch, size_bytes=gradient.nbytes)):
                self._links.send(gradient, self._peer(sender, minibatch), minibatch, edge, backward=True)
        self._accumulate(gradients[: len(flying.weights)])

    def _recomputed(self, minibatch: int, flying: _InFlight) -> tuple[dict[str, Tensor], Tensor | None]:
        """Repeat a forward pass with the same weights and random numbers. Buffers such as running means keep their values."""
        buffers = {name: buffer.clone() for name, buffer in self._module.module.named_buffers()}
        return self._compute(minibatch, flying.weights | buffers, flying.inputs)

    def _gradients_of_outputs(self, minibatch: int, differentiable: set[str]) -> dict[str, Tensor]:
        """Receive the gradients of the outputs, and return their sums over the stages that received the output."""
        found: dict[str, Tensor] = {}
        for edge, name, to in self._from_me:
            if name not in differentiable:
                continue
            gradient = self._receive("recv_grad", minibatch, edge, to)
            found[name] = found[name] + gradient if name in found else gradient
        return found

    def _accumulate(self, gradients: list[Tensor]) -> None:
        if self._sums is None:
            self._sums = gradients
        else:
            self._sums = [total.add_(gradient) for total, gradient in zip(self._sums, gradients, strict=True)]

    def _update(self, update: int, minibatches: int) -> None:
        """Average the gradients of an update over its minibatches, with those of other replicas, and make the next version."""
        sums = self._sums
        self._sums = None
        if sums is None:
            sums = [torch.zeros_like(weight) for weight in self.weights.latest().values()]
        labels = self.labels(update, self.weights.newest)
        if self.group is not None and sums:
            size_bytes = sum(gradient.nbytes for gradient in sums)
            with self.parts.measure("allreduce", **labels, size_bytes=size_bytes):
                flat = torch.cat([gradient.reshape(-1) for gradient in sums])
                distributed.all_reduce(flat, group=self.group)
                pieces = flat.split([gradient.numel() for gradient in sums])
                sums = [piece.view_as(gradient) for piece, gradient in zip(pieces, sums, strict=True)]
        if self.rate is not None:
            self.optimizer.lr = self.rate(update)
        with self.parts.measure("opt_step", **labels):
            averages = [gradient.div_(minibatches) for gradient in sums] if minibatches > 1 else sums
            self.weights.update(averages, in_place=self._newest_is_done())

    def traffic(self) -> str:
        """Return a line with the bytes that this rank has sent and received, and its weight versions."""
        links = self._links
        versions = {each.version for each in self._flying.values()} | {self.weights.newest}
        return f"{links.sent_bytes} bytes sent, {links.received_bytes} received, weight versions {min(versions)}-{max(versions)}"

    def _newest_is_done(self) -> bool:
        """Return True if no later or unfinished minibatch uses the newest version, so that the next version may overwrite it."""
        newest = self.weights.newest
        used = any(each.version == newest for each in self._flying.values())
        return not used and not (self._awaited and self._awaited[0] <= newest)

    def _peer(self, stage: int, minibatch: int) -> int:
        return self.training.plan.rank_of(stage, minibatch)

    def labels(self, minibatch: int, version: int | None = None, size_bytes: int | None = None) -> dict[str, int]:
        """Return the metadata with which a part of a minibatch is logged. Here, minibatches count over all calls of `train`."""
        labels = {"stage": self.stage, "replica": self.replica, "minibatch": self.trained + minibatch}
        if size_bytes is not None:
            labels["size_bytes"] = size_bytes
        return labels if version is None else labels | {"version": version}
