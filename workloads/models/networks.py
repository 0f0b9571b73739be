"""Networks that classify images, as published ("paper") and shrunk ("tiny"): residual, VGG, densely connected, Inception."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from workloads.models.inception import inception_v3

_SIDE = {"paper": 224, "tiny": 32}  # pixels of an image


def side(preset: str) -> int:
    """Return the height and width, in pixels, of the images that a preset takes."""
    return _SIDE[preset]


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


class _Block(nn.Module):
    """Two convolutions of 3 by 3, or with `inner` channels in between one, narrowed before and widened after."""

    def __init__(self, before: int, after: int, stride: int, inner: int | None, groups: int) -> None:
        super().__init__()
        if inner is None:
            self.layers = nn.ModuleList([_conv(before, after, 3, stride), _conv(after, after)])
        else:
            self.layers = nn.ModuleList([_conv(before, inner, 1), _conv(inner, inner, 3, stride, groups), _conv(inner, after, 1)])
        self.skip = _conv(before, after, 1, stride) if stride > 1 or before != after else nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        out = images
        for layer in self.layers[:-1]:
            out = functional.relu(layer(out))
        return functional.relu(self.layers[-1](out) + self.skip(images))


class _Residual(NamedTuple):
    """Blocks of each stage; whether they are narrowed; channels of the narrow part in stage 1 per 64, and its groups."""

    blocks: tuple[int, ...]
    narrowed: bool = False
    inner: int = 64
    groups: int = 1


_RESIDUAL = {
    "resnet18": _Residual((2, 2, 2, 2)),
    "resnet50": _Residual((3, 4, 6, 3), True),
    "resnext101": _Residual((3, 4, 23, 3), True, 256, 32),
}


def _residual(shape: _Residual, preset: str, classes: int) -> nn.Module:
    """He et al. 2016; with groups Xie et al. 2017 (32x8d)."""
    paper = preset == "paper"
    width, blocks = (64, shape.blocks) if paper else (8, tuple(min(2, count) for count in shape.blocks[:3]))
    inner, groups = (shape.inner, shape.groups) if paper else (shape.inner // 8, min(4, shape.groups))
    stem = (
        nn.Sequential(_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        if paper
        else nn.Sequential(_conv(3, width), nn.ReLU())
    )
    layers: list[nn.Module] = [stem]
    before = width
    for stage, count in enumerate(blocks):
        after = width * (4 if shape.narrowed else 1) << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            layers.append(_Block(before, after, stride, inner << stage if shape.narrowed else None, groups))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _vgg16(preset: str, classes: int) -> nn.Module:
    """Simonyan and Zisserman 2015, configuration D."""
    shrink, hidden, last = (1, 4096, 7) if preset == "paper" else (8, 64, 1)
    layers: list[nn.Module] = []
    before = 3
    for count, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(count):
            layers += [nn.Conv2d(before, width // shrink, 3, 1, 1), nn.ReLU()]
            before = width // shrink
        layers.append(nn.MaxPool2d(2))
    widths = [before * last * last, hidden, hidden]
    for narrow, wide in pairwise(widths):
        layers += [*([nn.Flatten()] if narrow == widths[0] else []), nn.Linear(narrow, wide), nn.ReLU(), nn.Dropout()]
    return _initialised(nn.Sequential(*layers, nn.Linear(hidden, classes)))


def _initialised(network: nn.Module) -> nn.Module:
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            nn.init.zeros_(layer.bias)
    return network


class _DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(before), nn.BatchNorm2d(4 * growth)])
        self.narrow = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.grow = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        out = self.narrow(functional.relu(self.norms[0](images)))
        return torch.cat([images, self.grow(functional.relu(self.norms[1](out)))], 1)


def _densenet121(preset: str, classes: int) -> nn.Module:
    """Huang et al. 2017."""
    paper = preset == "paper"
    growth, blocks = (32, (6, 12, 24, 16)) if paper else (8, (2, 2, 2))
    width = 2 * growth
    layers: list[nn.Module] = [_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)] if paper else [_conv(3, width), nn.ReLU()]
    for stage, count in enumerate(blocks):
        if stage:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(count):
            layers.append(_DenseLayer(width, growth))
            width += growth
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)


def network(name: str, preset: str, classes: int) -> nn.Module:
    """Return the network of that name, a key of `workloads.models.NETWORKS`."""
    if name in _RESIDUAL:
        return _residual(_RESIDUAL[name], preset, classes)
    if name == "inception_v3":
        return inception_v3(preset, classes)
    return _vgg16(preset, classes) if name == "vgg16" else _densenet121(preset, classes)
