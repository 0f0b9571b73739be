"""A .npz file of an image and a label for each sample, of which rare classes are drawn more often, with replacement."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler
from torch_parts import launch, save, train

_SAMPLES, _CLASSES, _EPOCHS = 400, 10, 3


class Archives(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with np.load(self._paths[index]) as archive:
            return torch.from_numpy(archive["image"]).float() + int(archive["label"])


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("npz")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"{i:05}.npz" for i in range(job.samples(_SAMPLES))]
    for i, path in enumerate(paths):
        if not path.exists():
            np.savez(path, image=rng.integers(0, 256, (160, 160, 3), np.uint8), label=i % _CLASSES)
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    weights = [1.0 + i % _CLASSES for i in range(len(paths))]
    random = torch.Generator().manual_seed(job.seed + 1000 * job.rank)
    sampler = WeightedRandomSampler(weights, len(paths) // job.ranks, replacement=True, generator=random)
    loader = DataLoader(Archives(paths), job.batch(8), sampler=sampler, num_workers=job.workers)
    for epoch in range(job.epochs(_EPOCHS)):
        for _ in train(loader, job.step_s(0.06)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
