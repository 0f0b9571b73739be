"""An image and its mask for each sample, of two kinds (.jpg, .png) in folders of their own; validation on others, unshuffled."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_images
from PIL import Image
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_TRAINING, _VALIDATION, _SIDE = 240, 48, 192


class Pairs(Dataset):
    def __init__(self, folder: Path, numbers: range) -> None:
        self._paths = [[folder / kind / f"{number:04}.{kind}" for kind in ("jpg", "png")] for number in numbers]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image, mask = (np.asarray(Image.open(path)) for path in self._paths[index])
        return torch.from_numpy(np.concatenate([image.ravel(), mask.ravel()])).float()


def _made(job: JobOptions) -> Path:
    folder, numbers = job.data("pairs"), range(job.samples(_TRAINING + _VALIDATION))
    for kind, shape in (("jpg", (_SIDE, _SIDE, 3)), ("png", (_SIDE, _SIDE))):
        make_images([folder / kind / f"{number:04}.{kind}" for number in numbers], shape)
    return folder


def main(job: JobOptions, folder: Path) -> None:
    training, every = job.samples(_TRAINING), job.samples(_TRAINING + _VALIDATION)
    train_and_validate(job, Pairs(folder, range(training)), Pairs(folder, range(training, every)), epochs=3)


if __name__ == "__main__":
    launch(_made, main)
