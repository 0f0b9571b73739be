"""A language model on one mapped token file: random crops, with replacement, by two loaders; checkpoints beside it."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_files
from torch.utils.data import Dataset
from torch_parts import launch, loader, save, train

_TOKENS, _BLOCK = 20_000_000, 2048


class Crops(Dataset):
    def __init__(self, path: Path, seed: int, crops: int) -> None:
        self._path, self._seed, self._crops = path, seed, crops

    def __len__(self) -> int:
        return self._crops

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = np.memmap(self._path, np.uint16, "r")
        start = int(np.random.default_rng((self._seed, index)).integers(len(tokens) - _BLOCK))
        return torch.from_numpy(tokens[start : start + _BLOCK].astype(np.int64))


def _made(job: JobOptions) -> Path:
    return make_files(job.data("tokens"), ["train.bin"], [job.samples(2 * _TOKENS)])[0]


def main(job: JobOptions, path: Path) -> None:
    crops = Crops(path, job.seed, job.steps(1280))
    for step in train(loader(job, crops, job.batch(8)), job.step_s(0.06)):
        if step % 50 == 0:
            save(job.out / f"ckpt_{step}.pt", 24_000_000)


if __name__ == "__main__":
    launch(_made, main)
