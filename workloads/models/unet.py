"""A U-Net (Ronneberger et al. 2015) of three levels for images of 32 by 32 pixels."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from iotwin.workloads.models.built import Built


def _conv(before: int, after: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(before, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(inplace=True))


class _UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList([_conv(3, 8), _conv(8, 16), _conv(16, 32)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
        self.join = nn.ModuleList([_conv(32, 16), _conv(16, 8)])
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        levels: list[Tensor] = []
        for depth, down in enumerate(self.down):
            images = down(images if depth == 0 else functional.max_pool2d(images, 2))
            levels.append(images)
        for up, join, skipped in zip(self.up, self.join, reversed(levels[:-1]), strict=True):
            images = join(torch.cat([up(images), skipped], 1))
        return self.last(images)


def unet() -> Built:
    """Return the model, which assigns each pixel to one of two classes."""

    def inputs(batch: int) -> tuple[Tensor, ...]:
        return torch.randn(batch, 3, 32, 32), torch.randint(0, 2, (batch, 32, 32))

    return Built(_UNet(), inputs, lambda model, images, masks: functional.cross_entropy(model(images), masks))
