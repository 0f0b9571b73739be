"""A generative adversarial network with an unrolled discriminator (Metz et al. 2017)."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models.built import Built

_UNROLLED_STEPS = 5


class _Gan(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
        self.discriminator = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def gan() -> Built:
    """Return the model. Its loss is the generator's, whose gradient passes through five updates of the discriminator."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 2), torch.randn(batch, 16)

    def loss(model: Any, real: Tensor, noise: Tensor) -> Tensor:
        weights = dict(model.discriminator.named_parameters())
        generated = model.generator(noise)

        def score(samples: Tensor) -> Tensor:
            return torch.func.functional_call(model.discriminator, weights, (samples,))

        for _ in range(_UNROLLED_STEPS):
            error = functional.softplus(-score(real)).mean() + functional.softplus(score(generated)).mean()
            gradients = torch.autograd.grad(error, list(weights.values()), create_graph=True)
            weights = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), gradients, strict=True)}
        return functional.softplus(-score(generated)).mean()

    return Built(_Gan(), inputs, loss)
