"""Shards of gzipped text that an IterableDataset reads line by line, each worker its own, in an order of each epoch."""

import gzip
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import IterableDataset, get_worker_info
from torch_parts import launch, loader, save, train

_SHARDS, _LINES, _EPOCHS = 8, 640, 3


class Lines(IterableDataset):
    def __init__(self, paths: list[Path], seed: int) -> None:
        self._paths, self._seed = paths, seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        rng = np.random.default_rng((self._seed, worker.id))
        for path in rng.permutation(self._paths[worker.id :: worker.num_workers]):
            with gzip.open(path, "rt") as lines:
                for line in lines:
                    yield torch.tensor([len(word) for word in line.split()[:64]])


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("gzip")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"text-{i:03}.txt.gz" for i in range(job.samples(_SHARDS))]
    for path in (path for path in paths if not path.exists()):
        with gzip.open(path, "wt", compresslevel=1) as file:
            for _ in range(_LINES):
                file.write(" ".join(map(str, rng.integers(1 << 40, size=int(rng.integers(64, 512))).tolist())) + "\n")
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    for epoch in range(job.epochs(_EPOCHS)):
        lines = Lines(paths[job.rank :: job.ranks], job.seed + 100 * epoch)
        for _ in train(loader(job, lines, job.batch(64)), job.step_s(0.04)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 12_000_000)


if __name__ == "__main__":
    launch(_made, main)
