"""Convolutional networks that classify images, as published ("paper") and shrunk ("tiny")."""

from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models.built import Built
from iotwin.workloads.models.inception import inception_v3, inception_v4


def _conv(before: int, after: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after))


class _ZeroChannels(nn.Module):
    """Takes every `stride`-th pixel, and adds `added` channels of zeros (He et al. 2016, option A)."""

    def __init__(self, stride: int, added: int) -> None:
        super().__init__()
        self.stride, self.added = stride, added

    def forward(self, images: Tensor) -> Tensor:
        before = self.added // 2
        return functional.pad(images[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.added - before))


class _Block(nn.Module):
    """A residual block of two 3 by 3 convolutions. With `inner` it is a bottleneck instead.

    A bottleneck has convolutions of 1 by 1 to `inner` channels, of 3 by 3, and of 1 by 1 to `after` channels. If the number of
    channels changes, a convolution of 1 by 1 adapts the block's input or, unless `projects`, channels of zeros are added.
    """

    def __init__(self, before: int, after: int, stride: int, inner: int | None, groups: int, projects: bool = True) -> None:
        super().__init__()
        if inner is None:
            self.layers = nn.ModuleList([_conv(before, after, 3, stride), _conv(after, after)])
        else:
            self.layers = nn.ModuleList([_conv(before, inner, 1), _conv(inner, inner, 3, stride, groups), _conv(inner, after, 1)])
        if stride == 1 and before == after:
            self.skip: nn.Module = nn.Identity()
        else:
            self.skip = _conv(before, after, 1, stride) if projects else _ZeroChannels(stride, after - before)

    def forward(self, images: Tensor) -> Tensor:
        out = images
        for layer in self.layers[:-1]:
            out = functional.relu(layer(out))
        return functional.relu(self.layers[-1](out) + self.skip(images))


class _ResidualShape(NamedTuple):
    """The sizes of a residual network: blocks per stage and, for bottlenecks, inner channels in stage 1 and groups.

    `of_cifar`: the network is for small images, begins with 16 channels and has no convolutions in its skips.
    """

    blocks: tuple[int, ...]
    bottleneck: bool = False
    inner: int = 64
    groups: int = 1
    of_cifar: bool = False


_RESIDUAL = {
    "resnet18": _ResidualShape((2, 2, 2, 2)),
    "resnet34": _ResidualShape((3, 4, 6, 3)),
    "resnet50": _ResidualShape((3, 4, 6, 3), True),
    "resnet101": _ResidualShape((3, 4, 23, 3), True),
    "resnet152": _ResidualShape((3, 8, 36, 3), True),
    "resnext101": _ResidualShape((3, 4, 23, 3), True, 256, 32),
    **{f"resnet{6 * each + 2}": _ResidualShape((each,) * 3, of_cifar=True) for each in (3, 5, 7, 9, 18, 200)},
}


def _residual(shape: _ResidualShape, preset: str, classes: int) -> nn.Module:
    """Return a ResNet (He et al. 2016) or, with groups, a ResNeXt (Xie et al. 2017, 32x8d)."""
    paper = preset == "paper"
    width, blocks = (64, shape.blocks) if paper else (8, tuple(min(2, count) for count in shape.blocks[:3]))
    width = 16 if paper and shape.of_cifar else width
    inner, groups = (shape.inner, shape.groups) if paper else (shape.inner // 8, min(4, shape.groups))
    stem = (
        nn.Sequential(_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
        if paper and not shape.of_cifar
        else nn.Sequential(_conv(3, width), nn.ReLU())
    )
    layers: list[nn.Module] = [stem]
    before = width
    for stage, count in enumerate(blocks):
        after = width * (4 if shape.bottleneck else 1) << stage
        for index in range(count):
            stride = 2 if stage and not index else 1
            narrow = inner << stage if shape.bottleneck else None
            layers.append(_Block(before, after, stride, narrow, groups, projects=not shape.of_cifar))
            before = after
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _vgg16(preset: str, classes: int) -> nn.Module:
    """Return VGG-16 (Simonyan and Zisserman 2015, configuration D)."""
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


def _alexnet(preset: str, classes: int) -> nn.Module:
    """Return AlexNet (Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks")."""
    shrink, hidden, last, first = (1, 4096, 6, (11, 4, 2)) if preset == "paper" else (8, 64, 2, (5, 1, 2))
    widths = [3, *(width // shrink for width in (64, 192, 384, 256, 256))]
    shapes = (first, (5, 1, 2), (3, 1, 1), (3, 1, 1), (3, 1, 1))  # kernel, stride, padding
    layers: list[nn.Module] = []
    for index, (before, after) in enumerate(pairwise(widths)):
        layers += [nn.Conv2d(before, after, *shapes[index]), nn.ReLU()]
        if index in (0, 1, 4):
            layers.append(nn.MaxPool2d(3, 2))
    layers += [nn.AdaptiveAvgPool2d(last), nn.Flatten()]
    for before in (widths[-1] * last * last, hidden):
        layers += [nn.Dropout(), nn.Linear(before, hidden), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(hidden, classes))


class _InvertedResidual(nn.Module):
    """Convolutions of 1 by 1 to `inner` channels, then of 3 by 3 per channel, then of 1 by 1 to fewer channels, `after`."""

    def __init__(self, before: int, after: int, stride: int, inner: int) -> None:
        super().__init__()
        widened = [_conv(before, inner, 1), nn.ReLU6()] if inner > before else []
        self.layers = nn.Sequential(*widened, _conv(inner, inner, 3, stride, inner), nn.ReLU6(), _conv(inner, after, 1))
        self.adds = stride == 1 and before == after

    def forward(self, images: Tensor) -> Tensor:
        return images + self.layers(images) if self.adds else self.layers(images)


# Expansion, channels, blocks, stride of the first block.
_MOBILE_STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def _mobilenet_v2(preset: str, classes: int) -> nn.Module:
    """Return MobileNetV2 (Sandler et al. 2018)."""
    paper = preset == "paper"
    shrink, stages, stride, last = (1, _MOBILE_STAGES, 2, 1280) if paper else (4, _MOBILE_STAGES[:3], 1, 64)
    before = 32 // shrink
    layers: list[nn.Module] = [_conv(3, before, 3, stride), nn.ReLU6()]
    for expansion, channels, count, first_stride in stages:
        for index in range(count):
            layers.append(_InvertedResidual(before, channels // shrink, 1 if index else first_stride, before * expansion))
            before = channels // shrink
    layers += [_conv(before, last, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(last, classes))


class _DenseLayer(nn.Module):
    def __init__(self, before: int, growth: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.BatchNorm2d(before), nn.BatchNorm2d(4 * growth)])
        self.narrow = nn.Conv2d(before, 4 * growth, 1, bias=False)
        self.grow = nn.Conv2d(4 * growth, growth, 3, 1, 1, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        out = self.narrow(functional.relu(self.norms[0](images)))
        return torch.cat([images, self.grow(functional.relu(self.norms[1](out)))], 1)


# Channels that a layer adds, channels before the first layer, layers of each block.
_DENSE = {
    "densenet121": (32, 64, (6, 12, 24, 16)),
    "densenet161": (48, 96, (6, 12, 36, 24)),
    "densenet169": (32, 64, (6, 12, 32, 32)),
    "densenet201": (32, 64, (6, 12, 48, 32)),
    "densenet100": (12, 24, (16, 16, 16)),
}


def _dense(name: str, preset: str, classes: int) -> nn.Module:
    """Return a DenseNet (Huang et al. 2017); densenet100 is DenseNet-BC for CIFAR."""
    growth, width, blocks = _DENSE[name] if preset == "paper" else (8, 16, (2, 2, 2))
    if preset == "tiny":
        layers: list[nn.Module] = [_conv(3, width), nn.ReLU()]
    elif name == "densenet100":
        layers = [nn.Conv2d(3, width, 3, 1, 1, bias=False)]
    else:
        layers = [_conv(3, width, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for stage, count in enumerate(blocks):
        if stage:
            layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width // 2, 1, bias=False), nn.AvgPool2d(2)]
            width //= 2
        for _ in range(count):
            layers.append(_DenseLayer(width, growth))
            width += growth
    layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]
    return nn.Sequential(*layers)


_OTHERS = {
    "vgg16": _vgg16,
    "alexnet": _alexnet,
    "mobilenet_v2": _mobilenet_v2,
    "inception_v3": inception_v3,
    "inception_v4": inception_v4,
}


def image_classifier(name: str, preset: str, classes: int, height: int, width: int) -> Built:
    """Return the network `name`, one of IMAGE_CLASSIFIERS, and inputs of `height` by `width` pixels."""
    if name in _RESIDUAL:
        module = _residual(_RESIDUAL[name], preset, classes)
    else:
        module = _dense(name, preset, classes) if name in _DENSE else _OTHERS[name](preset, classes)

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, height, width), torch.randint(0, classes, (batch,))

    return Built(module, inputs, lambda model, images, labels: functional.cross_entropy(model(images), labels))
