"""A folder of chunk files as zarr keeps an array, a patch is four neighbouring ones; persistent loaders, two sizes of chunk."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_files
from torch.utils.data import Dataset
from torch_parts import launch, loader, save, train

_ROWS, _COLUMNS = 24, 24


class Patches(Dataset):
    def __init__(self, job: JobOptions, folder: Path) -> None:
        self._folder, rows = folder, job.samples(_ROWS)
        self._places = np.random.default_rng(job.seed).integers(0, (rows - 1, _COLUMNS - 1), (job.samples(480), 2))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> torch.Tensor:
        row, column = self._places[index].tolist()
        parts = [(self._folder / f"{row + r}.{column + c}").read_bytes() for r in (0, 1) for c in (0, 1)]
        return torch.frombuffer(bytearray(b"".join(parts)[:30_000]), dtype=torch.uint8)


def _made(job: JobOptions) -> Path:
    names = [f"{row}.{column}" for row in range(job.samples(_ROWS)) for column in range(_COLUMNS)]
    make_files(job.data("zarr"), names, [32_768] * len(names))
    return job.data("zarr")


def main(job: JobOptions, folder: Path) -> None:
    patches = loader(job, Patches(job, folder), job.batch(8), persistent_workers=True)
    for epoch in range(job.epochs(3)):
        for _ in train(patches, job.step_s(0.06)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
