"""A generative adversarial network with an unrolled discriminator (Metz et al. 2017)."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models import Sizes
from iotwin.workloads.models.built import Built


def _layers(before: int, hidden: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(before, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, after))


class _Gan(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.generator = _layers(*(int(sizes[key]) for key in ("g_inp", "g_hid", "g_out")))
        self.discriminator = _layers(*(int(sizes[key]) for key in ("g_out", "d_hid", "d_out")))


def gan(preset: str, sizes: Sizes) -> Built:
    """Return the model. Its loss is the generator's, whose gradient passes through updates of the discriminator.

    `sizes`: widths of the generator (g_inp, g_hid, g_out) and the discriminator (d_hid, d_out), the number of updates
    (unrolled_steps), and the spread (std) of the samples around eight points on a circle with the radius `radius`.
    """
    dimensions, noise_width = int(sizes["g_out"]), int(sizes["g_inp"])

    def inputs(batch: int) -> tuple[Tensor, ...]:
        angles = torch.randint(0, 8, (batch,)) * (math.pi / 4)
        circle = torch.stack([angles.cos(), angles.sin()], -1)[:, :dimensions]
        centres = functional.pad(circle, (0, dimensions - circle.shape[1]))
        return sizes["radius"] * centres + sizes["std"] * torch.randn(batch, dimensions), torch.randn(batch, noise_width)

    def loss(model: Any, real: Tensor, noise: Tensor) -> Tensor:
        weights = dict(model.discriminator.named_parameters())
        generated = model.generator(noise)

        def score(samples: Tensor) -> Tensor:
            return torch.func.functional_call(model.discriminator, weights, (samples,))

        for _ in range(int(sizes["unrolled_steps"])):
            error = functional.softplus(-score(real)).mean() + functional.softplus(score(generated)).mean()
            gradients = torch.autograd.grad(error, list(weights.values()), create_graph=True)
            weights = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), gradients, strict=True)}
        return functional.softplus(-score(generated)).mean()

    return Built(_Gan(sizes), inputs, loss)
