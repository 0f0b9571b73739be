"""Images on two ranks (gloo), validation from another folder; or --sharded: distributed checkpoints of both, three kept."""

import shutil
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp
from command_line import JobOptions
from job_parts import make_files, read_file
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate


class Images(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        read_file(self._paths[index])
        return torch.zeros(1000)


def _made(job: JobOptions) -> list[list[Path]]:
    sizes, sets = np.random.default_rng(1), []
    for name, usual in (("train2", 192), ("val2", 64)):
        files = [f"{name[0]}{i:03}.jpg" for i in range(job.samples(usual))]
        sets.append(make_files(job.data(name), files, sizes.integers(60_000, 140_000, len(files)).tolist()))
    return sets


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    kept: list[Path] = []

    def save_shards(epoch: int, step: int) -> None:
        if step % 12 == 0:
            state = {"model": torch.zeros(1_000_000 + job.rank), f"own{job.rank}": torch.zeros(1_500_000)}
            kept.append(job.out / f"step_{epoch}_{step}")
            dcp.async_save(state, checkpoint_id=kept[-1]).result()
            if job.rank == 0 and len(kept) > 3:
                shutil.rmtree(kept[-4])

    sharded = {"state_bytes": 0, "after_step": save_shards} if job.sharded else {}
    train_and_validate(job, *map(Images, sets), batch=4, **sharded)


if __name__ == "__main__":
    launch(_made, main, "sharded", ranks=2)
