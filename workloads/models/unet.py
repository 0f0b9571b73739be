"""A U-Net (Ronneberger et al. 2015) that enlarges features by interpolation, and marks the pixels of one class."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models import Sizes
from iotwin.workloads.models.built import Built

# Channels of each level, from the largest images to the smallest.
_CHANNELS = {"paper": (64, 128, 256, 512, 512), "tiny": (8, 16, 16)}


def _two_convs(before: int, between: int, after: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in ((before, between), (between, after)):
        layers += [nn.Conv2d(narrow, wide, 3, 1, 1), nn.BatchNorm2d(wide), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class _UNet(nn.Module):
    """Each level down halves height and width. The two last levels must have equal numbers of channels."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.down = nn.ModuleList(_two_convs(before, after, after) for before, after in pairwise((3, *channels)))
        ups = zip(channels[-2::-1], (*channels[-3::-1], channels[0]), strict=True)
        self.up = nn.ModuleList(_two_convs(2 * each, each, after) for each, after in ups)
        self.last = nn.Conv2d(channels[0], 1, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for depth, down in enumerate(self.down):
            images = down(functional.max_pool2d(images, 2) if depth else images)
            levels.append(images)
        for up, skipped in zip(self.up, reversed(levels[:-1]), strict=True):
            larger = functional.interpolate(images, skipped.shape[2:], mode="bilinear", align_corners=True)
            images = up(torch.cat([skipped, larger], 1))
        return self.last(images)


def unet(preset: str, sizes: Sizes) -> Built:
    """Return the model. `sizes`: height and width of the images in pixels."""
    height, width = int(sizes["height"]), int(sizes["width"])

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, height, width), torch.randint(0, 2, (batch, 1, height, width)).float()

    return Built(_UNet(_CHANNELS[preset]), inputs, lambda model, x, y: functional.binary_cross_entropy_with_logits(model(x), y))
