"""A .pt file a sample, start from a model of another file, checkpoints renamed; --resume goes on from the last of them."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, save, train_and_validate


class Features(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.load(self._paths[index])["features"][:4000]


def _made(job: JobOptions) -> list[list[Path]]:
    sets = []
    for name, usual in (("features", 200), ("held", 64)):
        (folder := job.data(name)).mkdir(exist_ok=True)
        rng, paths = np.random.default_rng(7), [folder / f"s{i:04}.pt" for i in range(job.samples(usual))]
        for path in (path for path in paths if not path.exists()):
            torch.save({"features": torch.from_numpy(rng.random(int(rng.integers(20_000, 50_000)), np.float32))}, path)
        sets.append(paths)
    if not _start(job).exists():
        save(_start(job), 24_000_000)
    return sets


def _start(job: JobOptions) -> Path:
    return job.folder / ("checkpoint.pt" if job.resume else "pretrained.bin")


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    torch.load(_start(job))
    train_and_validate(job, *map(Features, sets), state_bytes=12_000_000, renamed=True)


if __name__ == "__main__":
    launch(_made, main, "resume")
