"""Rows of four mapped .npy files by loaders, at random; validation on the rows of a fifth."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_FILES, _ROWS, _WIDTH = 5, 80, 12_288  # 48 KiB a row


class Rows(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._arrays = [np.load(path, mmap_mode="r") for path in paths]

    def __len__(self) -> int:
        return sum(map(len, self._arrays))

    def __getitem__(self, index: int) -> torch.Tensor:
        file, row = divmod(index, len(self._arrays[0]))
        return torch.from_numpy(self._arrays[file][row].copy())


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("npy")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"part-{i}.npy" for i in range(_FILES)]
    for path in (path for path in paths if not path.exists()):
        np.save(path, rng.random((job.samples(_ROWS), _WIDTH), np.float32))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    train_and_validate(job, Rows(paths[:-1]), Rows(paths[-1:]))


if __name__ == "__main__":
    launch(_made, main)
