"""Loads the batches of classified images for training and evaluation."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import leave_signals_to_rank
from iotwin.common.units import counted
from iotwin.workloads.checkfreq.config import CheckFreqConfig
from iotwin.workloads.common.images import Images
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.models import IMAGE_SIDE
from iotwin.workloads.state.batches import ResumableBatches


def training_loader(
    files: Sequence[tuple[Path, int]], config: CheckFreqConfig, rank: int, world_size: int, parts: Parts
) -> DataLoader:
    """Return this rank's loader of training batches. Raises IotwinError if the images do not fill one batch on each rank."""
    if len(files) < config.batch_size * world_size:
        raise IotwinError(
            f"{config.data} has {counted(len(files), 'training image')}, too few for one batch of {config.batch_size} on each of "
            f"{counted(world_size, 'rank')}; generate more data or lower --batch-size"
        )
    batches = ResumableBatches(len(files), config.batch_size, config.seed, rank, world_size, with_epoch=True)
    return _loader(Images(files, IMAGE_SIDE[config.preset], config.seed, parts), config, batch_sampler=batches)


def evaluation_loader(files: Sequence[tuple[Path, int]], config: CheckFreqConfig, parts: Parts) -> DataLoader:
    """Return the loader of this rank's share of `files` for evaluation."""
    own = torch.Generator()  # separate from training, whose random numbers must not depend on evaluations
    return _loader(
        Images(files, IMAGE_SIDE[config.preset], config.seed, parts), config, batch_size=config.batch_size, generator=own
    )


def _loader(images: Images, config: CheckFreqConfig, **options: object) -> DataLoader:
    return DataLoader(
        images, num_workers=config.workers, worker_init_fn=leave_signals_to_rank, pin_memory=torch.cuda.is_available(), **options
    )
