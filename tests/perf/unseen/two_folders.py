"""Two data sets of raw files, small and large ones, concatenated and shuffled together; validation on files of the small kind."""

from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from job_parts import make_files
from torch.utils.data import ConcatDataset, Dataset
from torch_parts import launch, train_and_validate

_LEAST_BYTES = 20_000
_SETS = {"clean": (200, _LEAST_BYTES, 40_000), "noisy": (120, 80_000, 160_000), "held": (48, _LEAST_BYTES, 40_000)}


class Recordings(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.from_numpy(np.fromfile(self._paths[index], np.int16)[: _LEAST_BYTES // 2])


def _made(job: JobOptions) -> list[list[Path]]:
    rng, sets = np.random.default_rng(1), []
    for name, (usual, least, most) in _SETS.items():
        names = [f"{name}_{i:04}.raw" for i in range(job.samples(usual))]
        sizes = 2 * rng.integers(least // 2, most // 2, len(names))
        sets.append(make_files(job.data("recordings") / name, names, sizes.tolist()))
    return sets


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    clean, noisy, held = map(Recordings, sets)
    train_and_validate(job, ConcatDataset([clean, noisy]), held)


if __name__ == "__main__":
    launch(_made, main)
