"""Tar shards read as a stream by an IterableDataset, shuffled by a buffer in the worker, as WebDataset does."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import IterableDataset, get_worker_info
from torch_parts import launch, loader, save, train

_SHARDS, _SAMPLES = 8, 100


class Shards(IterableDataset):
    def __init__(self, paths: list[Path], seed: int) -> None:
        self._paths, self._seed = paths, seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        rng = np.random.default_rng((self._seed, worker.id))
        buffer: list[bytes] = []
        for sample in self._samples(rng.permutation(self._paths[worker.id :: worker.num_workers])):
            buffer.append(sample)
            if len(buffer) > 40:
                yield _tensor(buffer.pop(int(rng.integers(len(buffer)))))
        yield from map(_tensor, buffer)

    def _samples(self, paths: list[Path]) -> Iterator[bytes]:
        for path in paths:
            with tarfile.open(path, "r|", bufsize=1 << 17) as tar:
                for member in tar:
                    yield tar.extractfile(member).read()


def _tensor(content: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(content[:30_000]), dtype=torch.uint8)


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("tar")).mkdir(exist_ok=True)
    paths, rng = [folder / f"shard-{i:05}.tar" for i in range(job.samples(_SHARDS))], np.random.default_rng(7)
    for path in (path for path in paths if not path.exists()):
        with tarfile.open(path, "w") as tar:
            for i in range(_SAMPLES):
                content = rng.bytes(int(rng.integers(30_000, 60_000)))
                info = tarfile.TarInfo(f"{i:04}.jpg")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    for epoch in range(job.epochs(3)):
        shards = Shards(paths[job.rank :: job.ranks], job.seed + 100 * epoch)
        for _ in train(loader(job, shards, job.batch(16)), job.step_s(0.08)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
