"""What the job with a memory budget trains: a network, its samples and its loss."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from iotwin.common.errors import IotwinError
from iotwin.common.units import counted
from iotwin.datagen.layouts import ImagenetLayout, Unet3dLayout
from iotwin.workloads.common.images import Images
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.dtr.config import UNET3D, DtrConfig
from iotwin.workloads.models import IMAGE_SIDE, build
from iotwin.workloads.unet3d.data import TrainingCases
from iotwin.workloads.unet3d.loss import dice_cross_entropy
from iotwin.workloads.unet3d.model import UNet3d

# For unet3d: channels at full resolution, how often the resolution is halved, and voxels on each side of a crop.
_VOLUMES = {"paper": (32, 5, 128), "tiny": (4, 2, 16)}


class TrainingTask(NamedTuple):
    """A network on the job's device, a data set of `samples` samples with the keys (epoch, index), and the loss of a batch."""

    network: nn.Module
    dataset: Dataset
    samples: int
    loss: Callable[[Tensor, Tensor], Tensor]  # a function of the network's result and the labels


def training_task(config: DtrConfig, parts: Parts) -> TrainingTask:
    """Return what the job trains. Raises IotwinError if the data set is missing, or too small for a batch."""
    with torch.device(config.device):
        task = _volumes(config, parts) if config.model == UNET3D else _images(config, parts)
    if task.samples < config.batch_size:
        raise IotwinError(
            f"{config.data} has {counted(task.samples, 'training sample')}, too few for a batch of {config.batch_size}; "
            "generate more data or lower --batch-size"
        )
    return task


def _images(config: DtrConfig, parts: Parts) -> TrainingTask:
    classes, files = ImagenetLayout.discover(config.data, "train")
    images = Images(files, IMAGE_SIDE[config.preset], config.seed, parts)
    network = build(config.model, config.preset, len(classes)).module
    return TrainingTask(network, images, len(files), functional.cross_entropy)


def _volumes(config: DtrConfig, parts: Parts) -> TrainingTask:
    channels, depth, side = _VOLUMES[config.preset]
    cases, _ = Unet3dLayout.split(Unet3dLayout.discover(config.data))
    dataset = TrainingCases(cases, (side, side, side), config.seed, parts)
    return TrainingTask(UNet3d(channels, depth), dataset, len(cases), _segmentation_loss)


def _segmentation_loss(scores: Tensor, label: Tensor) -> Tensor:
    return dice_cross_entropy(scores, label[:, 0].long())
