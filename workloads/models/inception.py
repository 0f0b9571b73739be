"""Inception v3 without its auxiliary classifier (Szegedy et al. 2016), and Inception v4 (Szegedy et al. 2017)."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

Size = int | tuple[int, int]


class _Branches(nn.Module):
    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([branch(images) for branch in self.branches], 1)


def _conv(before: int, after: int, kernel: Size, stride: int = 1, padded: bool = True) -> nn.Sequential:
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = (height // 2, width // 2) if padded else 0
    conv = nn.Conv2d(before, after, kernel, stride, padding, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after, eps=0.001), nn.ReLU())


def _chain(before: int, *layers: tuple[int, Size]) -> nn.Sequential:
    """Return a sequence of convolutions; each of `layers` is (channels, kernel). `before`: channels of the input."""
    channels = [before, *(after for after, _ in layers)]
    return nn.Sequential(*(_conv(each, after, kernel) for each, (after, kernel) in zip(channels, layers, strict=False)))


def _pooled(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), _conv(before, after, 1))


def _narrowing(before: int, layers: Sequence[tuple[int, Size]], after: int) -> nn.Sequential:
    """Return a sequence of convolutions that ends with one of 3 by 3 and stride 2, which halves height and width."""
    last = layers[-1][0] if layers else before
    return nn.Sequential(*_chain(before, *layers), _conv(last, after, 3, 2, padded=False))


def inception_v3(preset: str, classes: int) -> nn.Module:
    """Return the network. With the preset tiny, it has an eighth of the channels and one block of each kind."""
    paper = preset == "paper"
    n = (lambda channels: channels) if paper else (lambda channels: channels // 8)
    pool = partial(nn.MaxPool2d, 3, 2)
    layers: list[nn.Module] = (
        [_conv(3, 32, 3, 2, padded=False), _conv(32, 32, 3, padded=False), _conv(32, 64, 3), pool(), _conv(64, 80, 1),
         _conv(80, 192, 3, padded=False), pool()]
        if paper
        else [_conv(3, n(192), 3)]
    )  # fmt: skip
    before = n(192)
    for pooled in (32, 64, 64) if paper else (64,):
        layers.append(
            _Branches(
                _conv(before, n(64), 1),
                _chain(before, (n(48), 1), (n(64), 5)),
                _chain(before, (n(64), 1), (n(96), 3), (n(96), 3)),
                _pooled(before, n(pooled)),
            )
        )
        before = n(64) + n(64) + n(96) + n(pooled)
    layers.append(_Branches(_narrowing(before, (), n(384)), _narrowing(before, ((n(64), 1), (n(96), 3)), n(96)), pool()))
    before += n(384) + n(96)
    wide, high = (1, 7), (7, 1)
    for inner in map(n, (128, 160, 160, 192) if paper else (128,)):
        layers.append(
            _Branches(
                _conv(before, n(192), 1),
                _chain(before, (inner, 1), (inner, wide), (n(192), high)),
                _chain(before, (inner, 1), (inner, high), (inner, wide), (inner, high), (n(192), wide)),
                _pooled(before, n(192)),
            )
        )
        before = 4 * n(192)
    layers.append(
        _Branches(
            _narrowing(before, ((n(192), 1),), n(320)),
            _narrowing(before, ((n(192), 1), (n(192), wide), (n(192), high)), n(192)),
            pool(),
        )
    )
    before += n(320) + n(192)
    for _ in range(2 if paper else 1):
        both = [_Branches(_conv(n(384), n(384), (1, 3)), _conv(n(384), n(384), (3, 1))) for _ in range(2)]
        layers.append(
            _Branches(
                _conv(before, n(320), 1),
                nn.Sequential(_conv(before, n(384), 1), both[0]),
                nn.Sequential(*_chain(before, (n(448), 1), (n(384), 3)), both[1]),
                _pooled(before, n(192)),
            )
        )
        before = n(320) + 4 * n(384) + n(192)
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Dropout(), nn.Flatten(), nn.Linear(before, classes))


def inception_v4(preset: str, classes: int) -> nn.Module:
    """Return the network. With the preset tiny, it has an eighth of the channels, no stem, and one block of each kind."""
    paper = preset == "paper"
    n = (lambda channels: channels) if paper else (lambda channels: channels // 8)
    pool = partial(nn.MaxPool2d, 3, 2)
    wide, high = (1, 7), (7, 1)
    layers: list[nn.Module] = _stem_of_v4() if paper else [_conv(3, n(384), 3)]
    before = n(384)
    for _ in range(4 if paper else 1):
        layers.append(
            _Branches(
                _conv(before, n(96), 1),
                _chain(before, (n(64), 1), (n(96), 3)),
                _chain(before, (n(64), 1), (n(96), 3), (n(96), 3)),
                _pooled(before, n(96)),
            )
        )
    layers.append(_Branches(_narrowing(before, (), n(384)), _narrowing(before, ((n(192), 1), (n(224), 3)), n(256)), pool()))
    before = n(1024)
    for _ in range(7 if paper else 1):
        layers.append(
            _Branches(
                _conv(before, n(384), 1),
                _chain(before, (n(192), 1), (n(224), wide), (n(256), high)),
                _chain(before, (n(192), 1), (n(192), high), (n(224), wide), (n(224), high), (n(256), wide)),
                _pooled(before, n(128)),
            )
        )
    layers.append(
        _Branches(
            _narrowing(before, ((n(192), 1),), n(192)),
            _narrowing(before, ((n(256), 1), (n(256), wide), (n(320), high)), n(320)),
            pool(),
        )
    )
    before = n(1536)
    for _ in range(3 if paper else 1):
        both = [_Branches(_conv(inner, n(256), (1, 3)), _conv(inner, n(256), (3, 1))) for inner in (n(384), n(512))]
        layers.append(
            _Branches(
                _conv(before, n(256), 1),
                nn.Sequential(_conv(before, n(384), 1), both[0]),
                nn.Sequential(*_chain(before, (n(384), 1), (n(448), (3, 1)), (n(512), (1, 3))), both[1]),
                _pooled(before, n(256)),
            )
        )
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, classes))


def _stem_of_v4() -> list[nn.Module]:
    pool, narrow = partial(nn.MaxPool2d, 3, 2), partial(_conv, padded=False)
    return [
        narrow(3, 32, 3, 2), narrow(32, 32, 3), _conv(32, 64, 3), _Branches(pool(), narrow(64, 96, 3, 2)),
        _Branches(
            nn.Sequential(_conv(160, 64, 1), narrow(64, 96, 3)),
            nn.Sequential(*_chain(160, (64, 1), (64, (1, 7)), (64, (7, 1))), narrow(64, 96, 3)),
        ),
        _Branches(narrow(192, 192, 3, 2), pool()),
    ]  # fmt: skip
