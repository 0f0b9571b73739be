"""A .npy file of a volume for each sample, by loaders that the spawn method starts and that stay; checkpoints renamed."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, loader, save, train

_VOLUMES, _LEAST, _MOST, _EPOCHS = 240, 20, 40, 4


class Volumes(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.load(self._paths[index])[:_LEAST]).float()


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("volumes")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"case_{i:05}.npy" for i in range(job.samples(_VOLUMES))]
    for path in (path for path in paths if not path.exists()):
        np.save(path, rng.integers(-1000, 1000, (int(rng.integers(_LEAST, _MOST)), 48, 48), np.int16))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    torch.manual_seed(job.seed)
    batches = loader(job, Volumes(paths), job.batch(6), True, persistent_workers=True, multiprocessing_context="spawn")
    for epoch in range(job.epochs(_EPOCHS)):
        if job.ranks > 1:
            batches.sampler.set_epoch(epoch)
        for _ in train(batches, job.step_s(0.06)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 8_000_000, renamed=True)


if __name__ == "__main__":
    launch(_made, main)
