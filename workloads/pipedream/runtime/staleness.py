"""Trains a model in one process by the formula of stale weights, as a pipeline would. `verify` compares the pipeline with this.

Minibatch m uses, in stage s, the weights after max(0, m // replicas(s) - warm-up(s)) updates (SOSP paper, section 3.3).
"""

import copy
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.func import functional_call

from iotwin.workloads.pipedream.runtime.engine import Load, Training, seed_pass

TorchOptimizer = Callable[[Iterable[Tensor], int], torch.optim.Optimizer]  # (parameters, stage)


def train_alone(
    training: Training, load: Load, minibatches: int, optimizer: TorchOptimizer
) -> tuple[list[dict[str, Tensor]], list[list[int]]]:
    """Return each stage's weights after a run, and the version that each minibatch used in each stage.

    All versions of the weights remain in memory. The model of `training` is not changed.
    """
    modules = [copy.deepcopy(stage.module) for stage in training.model.stages]
    live = [dict(module.named_parameters()) for module in modules]
    optimizers = [optimizer(parameters.values(), stage) for stage, parameters in enumerate(live)]
    history = [[_copy(parameters)] for parameters in live]
    used: list[list[int]] = [[] for _ in modules]
    for minibatch in range(minibatches):
        chosen = [_version(training, stage, minibatch, minibatches) for stage in range(len(modules))]
        for stage, version in enumerate(chosen):
            used[stage].append(version)
        weights = [history[stage][version] for stage, version in enumerate(chosen)]
        loss = _loss(training, modules, weights, load, minibatch)
        flat = [weight for each in weights for weight in each.values()]
        found = iter(torch.autograd.grad(loss, flat, allow_unused=True))
        for stage, parameters in enumerate(live):
            for parameter in parameters.values():
                gradient = next(found)
                gradient = torch.zeros_like(parameter) if gradient is None else gradient
                parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
            update = training.update_of(stage, minibatch)
            if minibatch + 1 < minibatches and training.update_of(stage, minibatch + 1) == update:
                continue
            count = sum(training.update_of(stage, each) == update for each in range(minibatches))
            for parameter in parameters.values():
                parameter.grad = None if parameter.grad is None else parameter.grad / count
            optimizers[stage].step()
            optimizers[stage].zero_grad()
            history[stage].append(_copy(parameters))
    return [_copy(parameters) for parameters in live], used


def _version(training: Training, stage: int, minibatch: int, minibatches: int) -> int:
    replicas = training.plan.stages[stage].replicas
    return training.used_versions(stage, minibatch % replicas, minibatches)[minibatch // replicas]


def _loss(
    training: Training, modules: list[torch.nn.Module], weights: list[dict[str, Tensor]], load: Load, minibatch: int
) -> Tensor:
    inputs, targets = load(minibatch)
    tensors = dict(zip(training.model.inputs, inputs, strict=True))
    for stage, (module, own) in enumerate(zip(modules, weights, strict=True)):
        described = training.model.stages[stage]
        seed_pass(training.seed, stage, minibatch)
        arguments = [tensors[name].clone() for name in described.inputs]
        result = functional_call(module, own, tuple(arguments))
        tensors |= dict(zip(described.outputs, result if isinstance(result, tuple) else (result,), strict=True))
    return training.criterion(tensors[training.model.output], *targets)


def _copy(parameters: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone().requires_grad_() for name, parameter in parameters.items()}
