"""Images that the training process opens and decodes itself (num_workers=0); validation from another folder."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_images
from PIL import Image
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate


class Images(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.array(Image.open(self._paths[index]))).float()


def _made(job: JobOptions) -> list[list[Path]]:
    sets = []
    for name, usual in (("train", 240), ("val", 64)):
        sets.append([job.data("own_images") / name / f"{i:04}.bmp" for i in range(job.samples(usual))])
        make_images(sets[-1], (160, 160, 3))
    return sets


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    train_and_validate(job, *map(Images, sets))


if __name__ == "__main__":
    launch(_made, main, workers=0)
