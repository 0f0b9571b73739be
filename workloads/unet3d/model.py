"""The 3-D U-Net: an encoder and a decoder, with skip connections between features of the same resolution."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from iotwin.datagen.layouts import Unet3dLayout

CLASSES = len(Unet3dLayout.MASK_CLASSES)
_WIDEST = 320  # most channels at any resolution, as in the published network of 31.2 million parameters


def level_widths(base_channels: int, depth: int) -> list[int]:
    """Return the number of channels at each of the `depth` + 1 resolutions, finest first.

    The number doubles from `base_channels` on, up to 320, or up to `base_channels` if that is more.
    """
    return [min(base_channels << level, max(base_channels, _WIDEST)) for level in range(depth + 1)]


def _convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv3d(channels_in, channels_out, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.InstanceNorm3d(channels_out, affine=True),
        nn.ReLU(inplace=True),
    )


def _double_convolution(channels_in: int, channels_out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(_convolution(channels_in, channels_out, stride), _convolution(channels_out, channels_out))


class _Up(nn.Module):
    """Doubles the resolution, concatenates the encoder's features of the same resolution, and convolves twice."""

    def __init__(self, channels_in: int, channels_out: int) -> None:
        super().__init__()
        self.upsample = nn.ConvTranspose3d(channels_in, channels_out, kernel_size=2, stride=2)
        self.convolve = _double_convolution(2 * channels_out, channels_out)

    def forward(self, coarse: Tensor, skip: Tensor) -> Tensor:
        """Return features [N, channels_out, 2D, 2H, 2W] from `coarse` [N, channels_in, D, H, W] and `skip` [N, C, 2D, 2H, 2W]."""
        return self.convolve(torch.cat((self.upsample(coarse), skip), dim=1))


class UNet3d(nn.Module):
    """3-D U-Net (Çiçek et al., 2016) with strided convolutions, instance normalisation and a class score per voxel.

    Maps images [N, 1, D, H, W] to scores [N, 3, D, H, W]; D, H and W must be multiples of 2**depth. With `base_channels` 32 and
    `depth` 5 it has the 31.2 million parameters of the published training job.
    """

    def __init__(self, base_channels: int, depth: int) -> None:
        super().__init__()
        widths = level_widths(base_channels, depth)
        self.stem = _double_convolution(1, widths[0])
        self.down = nn.ModuleList(_double_convolution(a, b, stride=2) for a, b in pairwise(widths))
        coarsest_first = widths[::-1]
        self.up = nn.ModuleList(_Up(a, b) for a, b in pairwise(coarsest_first))
        self.head = nn.Conv3d(widths[0], CLASSES, kernel_size=1)

    def forward(self, image: Tensor) -> Tensor:
        """Return the class scores (logits) of `image`."""
        skips = [self.stem(image)]
        for down in self.down:
            skips.append(down(skips[-1]))
        features = skips.pop()
        for up in self.up:
            features = up(features, skips.pop())
        return self.head(features)
