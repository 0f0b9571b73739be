"""A language model on one mapped token file: random crops, with replacement, by two loaders; checkpoints beside it."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from job_parts import make_files
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

_TOKENS, _BLOCK = 20_000_000, 2048


class Crops(Dataset):
    def __init__(self, path: Path, seed: int) -> None:
        self._path, self._seed = path, seed

    def __len__(self) -> int:
        return 1280

    def __getitem__(self, index: int) -> torch.Tensor:
        tokens = np.memmap(self._path, np.uint16, "r")
        start = int(np.random.default_rng((self._seed, index)).integers(len(tokens) - _BLOCK))
        return torch.from_numpy(tokens[start : start + _BLOCK].astype(np.int64))


def main(job: Namespace) -> None:
    path = make_files(job.folder / "tokens", ["train.bin"], [2 * _TOKENS])[0]
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    loader = DataLoader(Crops(path, job.seed), batch_size=8 * job.scale, num_workers=job.workers)
    for step in train(loader, 0.06 * job.scale):
        if step % 50 == 0:
            save(out / f"ckpt_{step}.pt", 24_000_000)


if __name__ == "__main__":
    main(command_line())
