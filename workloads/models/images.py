"""Models of images, at sizes that a CPU trains in milliseconds."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, Callable[[int], tuple[Tensor, ...]], Callable[..., Tensor]]
_CLASSES = 10


def _conv(before: int, after: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


def _classified(module: nn.Module, size: int = 32) -> Built:
    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, size, size), torch.randint(0, _CLASSES, (batch,))

    return module, inputs, lambda model, images, labels: functional.cross_entropy(model(images), labels)


class _Residual(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = _conv(before, after, stride)
        self.second = nn.Sequential(nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.skip = nn.Conv2d(before, after, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.second(self.first(images)) + self.skip(images))


def resnet() -> Built:
    """A residual network of 20 layers (He et al. 2016), a quarter as wide."""
    blocks: list[nn.Module] = [_conv(3, 4)]
    for before, after in ((4, 4), (4, 8), (8, 16)):
        blocks += [_Residual(before if i == 0 else after, after, 2 if i == 0 and after > before else 1) for i in range(3)]
    return _classified(nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, _CLASSES)))


class _Dense(nn.Module):
    def __init__(self, before: int, growth: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_conv(before + i * growth, growth) for i in range(layers))

    def forward(self, images: Tensor) -> Tensor:
        for layer in self.layers:
            images = torch.cat([images, layer(images)], 1)
        return images


def densenet() -> Built:
    """A densely connected network (Huang et al. 2017) of two blocks of six layers."""
    parts = [_conv(3, 8), _Dense(8, 4, 6), _conv(32, 16), nn.AvgPool2d(2), _Dense(16, 4, 6), nn.AdaptiveAvgPool2d(1)]
    return _classified(nn.Sequential(*parts, nn.Flatten(), nn.Linear(40, _CLASSES)))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_conv(3, 8), _conv(8, 16), _conv(16, 32)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.join = nn.ModuleList([_conv(32, 16), _conv(16, 8)])
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for depth, down in enumerate(self.down):
            images = down(images if depth == 0 else functional.max_pool2d(images, 2))
            kept.append(images)
        for up, join, skipped in zip(self.up, self.join, reversed(kept[:-1]), strict=True):
            images = join(torch.cat([up(images), skipped], 1))
        return self.last(images)


def unet() -> Built:
    """A U-Net (Ronneberger et al. 2015) of three levels."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, 32, 32), torch.randint(0, 2, (batch, 32, 32))

    return _UNet(), inputs, lambda model, images, masks: functional.cross_entropy(model(images), masks)


def vgg() -> Built:
    """A plain stack of convolutions (Simonyan and Zisserman 2015) of five stages."""
    widths = [3, 8, 8, 16, 16, 32]
    stages: list[nn.Module] = []
    for before, after in pairwise(widths):
        stages += [nn.Conv2d(before, after, 3, 1, 1), nn.ReLU(), nn.Conv2d(after, after, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)]
    return _classified(nn.Sequential(*stages, nn.Flatten(), nn.Dropout(), nn.Linear(32, _CLASSES)))


class _Adversaries(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 2))
        self.judge = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 1))


def gan() -> Built:
    """A generator trained through five unrolled steps of its adversary (Metz et al. 2017)."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 2), torch.randn(batch, 16)

    def loss(model: Any, real: Tensor, noise: Tensor) -> Tensor:
        weights = dict(model.judge.named_parameters())
        made = model.generator(noise)

        def judged(samples: Tensor) -> Tensor:
            return torch.func.functional_call(model.judge, weights, (samples,))

        for _ in range(5):
            error = functional.softplus(-judged(real)).mean() + functional.softplus(judged(made)).mean()
            slopes = torch.autograd.grad(error, list(weights.values()), create_graph=True)
            weights = {name: weight - 0.1 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
        return functional.softplus(-judged(made)).mean()

    return _Adversaries(), inputs, loss
