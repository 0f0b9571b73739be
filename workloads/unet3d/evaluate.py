"""Evaluates a network: segments whole volumes window by window, and scores the segmentations."""

import itertools
import time
from collections.abc import Iterator
from functools import cache
from operator import add
from types import EllipsisType

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from iotwin.workloads.common.parts import Parts
from iotwin.workloads.unet3d.config import Size, Unet3dConfig
from iotwin.workloads.unet3d.loss import dice_score
from iotwin.workloads.unet3d.model import CLASSES

Box = tuple[EllipsisType | slice, ...]  # index of a window's voxels in an array [..., D, H, W]


def window_starts(length: int, window: int, overlap: float) -> list[int]:
    """Return the first voxel of each window along an axis of `length` voxels.

    Two windows overlap by the share `overlap` of a window; the last window ends at the end of the axis.
    """
    stride = max(1, int(window * (1 - overlap)))
    last = length - window
    return [*range(0, last, stride), last]


@cache
def _importance(window: Size) -> Tensor:
    """Return the weights [D, H, W] of a window's voxels: a normal curve around the centre, with a deviation of window / 4."""
    axes = [torch.exp(-8 * ((torch.arange(size) + 0.5) / size - 0.5) ** 2) for size in window]
    return axes[0][:, None, None] * axes[1][None, :, None] * axes[2][None, None, :]


def sliding_window_scores(model: nn.Module, image: Tensor, window: Size, overlap: float, windows_at_once: int) -> Tensor:
    """Return class scores [1, C, D, H, W] of `image` [1, 1, D, H, W], as the weighted sum over overlapping windows.

    The image must not be smaller than a window. The network computes `windows_at_once` windows in a batch. Voxels near a window's
    edge weigh less, because the network sees less of their surroundings (Isensee et al., nnU-Net, 2021). The sums are not divided
    by the weights' sum: it is the same for all classes of a voxel, and only the highest score matters.
    """
    weight = _importance(window).to(image.device)[None]
    scores = torch.zeros((1, CLASSES, *image.shape[2:]), device=image.device)
    starts = [window_starts(length, size, overlap) for length, size in zip(image.shape[2:], window, strict=True)]
    boxes: list[Box] = [(..., *map(slice, corner, map(add, corner, window))) for corner in itertools.product(*starts)]
    for some in _even_chunks(boxes, windows_at_once):
        found = torch.softmax(model(torch.cat([image[box] for box in some])), 1) * weight
        for box, window_scores in zip(some, found, strict=True):
            scores[box] += window_scores
    return scores


def _even_chunks(boxes: list[Box], largest: int) -> Iterator[list[Box]]:
    """Yield `boxes` in as few chunks of at most `largest` as possible, of nearly equal length, since a chunk of one is slow."""
    chunks = -(-len(boxes) // largest)
    for index in range(chunks):
        yield boxes[index * len(boxes) // chunks : (index + 1) * len(boxes) // chunks]


def evaluate(model: nn.Module, cases: DataLoader, config: Unet3dConfig, device: torch.device, parts: Parts) -> tuple[float, int]:
    """Return (sum of the Dice scores, number of cases) over the cases of a loader, which must yield one case per batch."""
    model.eval()
    total, count = 0.0, 0
    asked_ns = time.monotonic_ns()
    with torch.inference_mode():
        for image, label in cases:
            parts.log("eval_load_batch_mem", asked_ns, time.monotonic_ns() - asked_ns, step_num=count)
            with parts.measure("eval_load_batch_gpu", step_num=count):
                image, label = image.to(device), label.to(device)
            with parts.measure("eval_sliding_window", step_num=count):
                scores = sliding_window_scores(model, image, config.crop, config.overlap, config.batch_size)
            with parts.measure("eval_loss_and_score_fn", step_num=count):
                total += dice_score(scores, label[:, 0].long())
            done_ns = time.monotonic_ns()
            parts.log("eval_step_end", asked_ns, done_ns - asked_ns, step_num=count)
            asked_ns = done_ns
            count += 1
    model.train()
    return total, count
