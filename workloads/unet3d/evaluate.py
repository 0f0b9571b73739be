"""Evaluation: segment whole volumes window by window and score them."""

import itertools
from functools import cache

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from workloads.unet3d.config import Size
from workloads.unet3d.loss import dice_score
from workloads.unet3d.model import CLASSES


def window_starts(length: int, window: int, overlap: float) -> list[int]:
    """Return where windows begin along an axis of `length` voxels: (1 - overlap) windows apart, the last one flush."""
    stride = max(1, int(window * (1 - overlap)))
    last = length - window
    return [*range(0, last, stride), last]


@cache
def _importance(window: Size) -> Tensor:
    """Return weights [D, H, W] in (0, 1]: a normal curve about the window's centre with a quarter of the window as deviation."""
    axes = [torch.exp(-8 * ((torch.arange(size) + 0.5) / size - 0.5) ** 2) for size in window]
    return axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]


def sliding_window_scores(model: nn.Module, image: Tensor, window: Size, overlap: float) -> Tensor:
    """Return class scores [1, C, D, H, W] of `image` [1, 1, D, H, W], at least a window large: overlapping windows, averaged.

    Voxels near a window's edge count less, because the network sees less around them (Isensee et al., nnU-Net, 2021). The average
    is left unnormalised: the weights of a voxel are common to all its classes, so the highest class is the same.
    """
    weight = _importance(window).to(image.device)
    scores = torch.zeros((1, CLASSES, *image.shape[2:]), device=image.device)
    starts = [window_starts(length, size, overlap) for length, size in zip(image.shape[2:], window, strict=True)]
    for corner in itertools.product(*starts):
        box = (..., *(slice(start, start + size) for start, size in zip(corner, window, strict=True)))
        scores[box] += torch.softmax(model(image[box]).float(), 1) * weight
    return scores


def evaluate(model: nn.Module, cases: DataLoader, window: Size, overlap: float, device: torch.device) -> tuple[float, int]:
    """Return the sum of the Dice scores of `cases` (batches of one whole case) and how many there were."""
    model.eval()
    total, count = 0.0, 0
    with torch.inference_mode():
        for image, label in cases:
            image, label = image.to(device), label.to(device)
            scores = sliding_window_scores(model, image, window, overlap)
            total += dice_score(scores, label[:, 0].long())
            count += 1
    model.train()
    return total, count
