"""PyTorch data sets and loaders of KiTS19-shaped cases. A case's volume is read whole, in DistributedSampler's order."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError
from iotwin.common.processes.children import leave_signals_to_rank
from iotwin.common.units import counted
from iotwin.datagen.layouts import Case, Unet3dLayout
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.torch_ranks import TorchRanks
from iotwin.workloads.common.variant import TIMED
from iotwin.workloads.state.position import begin, next_epoch, positions_of, steps_left
from iotwin.workloads.unet3d.config import Size, Unet3dConfig
from iotwin.workloads.unet3d.transforms import Image, Label, augment, pad_to

Sample = tuple[Tensor, Tensor]


def read_case(case: Case) -> tuple[Image, Label]:
    """Read the image and the mask of `case` by one np.load each. Raises IotwinError if one of them is damaged."""
    image, label = _read_volume(case.image), _read_volume(case.mask)
    if image.shape != label.shape:
        raise IotwinError(f"{case.image} has shape {image.shape} but its mask {label.shape}; generate the data set again")
    if label.max() > max(Unet3dLayout.MASK_CLASSES):
        raise IotwinError(f"{case.mask} has the unknown class {label.max()}; generate the data set again")
    return image.astype(np.float32, copy=False), label.astype(np.uint8, copy=False)


def _read_volume(path: Path) -> NDArray[np.generic]:
    try:
        volume: NDArray[np.generic] = np.load(path, allow_pickle=False)
    except OSError as error:
        raise IotwinError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError) as error:
        raise IotwinError(f"{path} is not a whole .npy file ({error}); generate the data set again") from None
    if volume.ndim != 4 or volume.shape[0] != 1 or 0 in volume.shape:
        raise IotwinError(f"{path} has shape {volume.shape} instead of (1, D, H, W); generate the data set again")
    return volume


class TrainingCases(Dataset):
    """Data set of augmented crops. The key (epoch, index) of an item seeds its augmentation, on whatever rank or worker."""

    def __init__(self, cases: Sequence[Case], crop: Size, seed: int, parts: Parts) -> None:
        self._cases, self._crop, self._seed, self._parts = cases, crop, seed, parts

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, key: tuple[int, int]) -> Sample:
        """Return the image [1, *crop] (float32) and the mask [1, *crop] (uint8) of one case."""
        epoch, index = key
        with self._parts.measure("sample_load", epoch_num=epoch, sample_num=index):
            image, label = read_case(self._cases[index])
        with self._parts.measure("sample_preproc", epoch_num=epoch, sample_num=index):
            rng = np.random.default_rng((self._seed, epoch, index))
            image, label = augment(image, label, self._crop, rng)
        return torch.from_numpy(image), torch.from_numpy(label)


class EvaluationCases(Dataset):
    """Data set of whole volumes. Each is padded to at least the size of an evaluation window."""

    def __init__(self, cases: Sequence[Case], window: Size) -> None:
        self._cases, self._window = cases, window

    def __len__(self) -> int:
        return len(self._cases)

    def __getitem__(self, index: int) -> Sample:
        """Return the image [1, D, H, W] (float32) and the mask [1, D, H, W] (uint8) of one case."""
        image, label = pad_to(*read_case(self._cases[index]), self._window)
        return torch.from_numpy(image), torch.from_numpy(label)


class EpochSampler(DistributedSampler):
    """torch's DistributedSampler, except that it yields (epoch, index) instead of index."""

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return ((self.epoch, index) for index in super().__iter__())


class EpochBatches:
    """Yields this rank's remaining batches of an epoch, beginning at `position`, as lists of keys of TrainingCases.

    From the start of an epoch, they are the batches of DistributedSampler with drop_last.
    """

    def __init__(self, order: EpochSampler, position: Position, rank: int) -> None:
        self._order, self._rank, self.position = order, rank, position

    def set_epoch(self, epoch: int) -> None:
        """Move to the start of `epoch`, unless the position is already in that epoch, as in a resumed job."""
        if self.position.epoch != epoch:
            self.position = next_epoch(msgspec.structs.replace(self.position, epoch=epoch - 1))

    def order(self) -> list[tuple[int, int]]:
        """Return the keys of all samples in the epoch's order."""
        self._order.set_epoch(self.position.epoch)
        return list(self._order)

    def __len__(self) -> int:
        """Return the number of steps that remain in the epoch."""
        return steps_left(self.position)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        """Yield the keys of each batch; empty batches are left out."""
        order, position = self.order(), self.position  # the job changes `self.position` meanwhile, as the loader reads ahead
        for step in range(steps_left(position)):
            if found := positions_of(position, self._rank, step):
                yield [order[index] for index in found]


def training_loader(cases: Sequence[Case], config: Unet3dConfig, ranks: TorchRanks) -> tuple[DataLoader, EpochBatches]:
    """Return (loader of this rank's training batches, the sampler that chooses the batches' samples).

    Raises IotwinError if there are too few cases for one batch on each rank.
    """
    if len(cases) // ranks.world_size < config.batch_size:
        raise IotwinError(
            f"{config.data} has {counted(len(cases), 'training case')}, too few for one batch of {config.batch_size} on each of "
            f"{counted(ranks.world_size, 'rank')}; generate more data or lower --batch-size"
        )
    dataset = TrainingCases(cases, config.crop, config.seed, Parts(config.variant in TIMED, rank=ranks.rank))
    order = EpochSampler(dataset, 1, 0, shuffle=True, seed=config.seed)
    batches = EpochBatches(order, begin(config.seed, 1, len(cases), config.batch_size, ranks.world_size), ranks.rank)
    return _loader(dataset, config, ranks, batch_sampler=batches), batches


def evaluation_loader(cases: Sequence[Case], config: Unet3dConfig, ranks: TorchRanks) -> DataLoader:
    """Return the loader of this rank's share of the evaluation cases, in order, with one case per batch."""
    dataset = EvaluationCases(cases[ranks.rank :: ranks.world_size], config.crop)
    return _loader(dataset, config, ranks, batch_size=1)


def _loader(dataset: Dataset, config: Unet3dConfig, ranks: TorchRanks, **options: object) -> DataLoader:
    return DataLoader(
        dataset,
        num_workers=config.workers,
        worker_init_fn=leave_signals_to_rank,
        prefetch_factor=config.prefetch if config.workers else None,
        persistent_workers=config.persistent_workers and config.workers > 0,
        pin_memory=ranks.device.type == "cuda",
        **options,
    )
