"""A small real PyTorch job with a planted problem: python advise_job.py FOLDER KIND [mended]. It prints its seconds a step.

The first call makes the data, below FOLDER. KIND is one of JOBS; `healthy` jobs have no problem. Nothing is logged in training.
"""

import os
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing import start_processes
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.perf.advise_data import DATA, Loading, evict, fetch, make_data

_PORT = 29577


@dataclass(frozen=True)
class Settings:
    """The settings of a job; times are in seconds."""

    data: str = "files"
    loading: Loading = field(default_factory=Loading)
    batch: int = 4
    workers: int = 2
    prefetch: int = 2
    step: float = 0.02
    save_every: int = 0
    shuffle: bool = True
    cold: bool = False  # training begins with an empty page cache
    fetched: bool = False  # the data are read through before training
    ranks: int = 1
    slow_workers: int | None = None  # workers of the last rank


# The planted job, and the settings that mend it; None for healthy jobs.
JOBS: dict[str, tuple[Settings, dict[str, Any] | None]] = {
    "few_loaders": (Settings(workers=1, loading=Loading(decode=0.015)), {"workers": 4}),
    "small_reads": (Settings(loading=Loading(request=256), workers=1, step=0.001), {"loading": Loading(request=1 << 20)}),
    "reopened_files": (Settings("records", Loading(reopen=True), workers=1, step=0.005), {"loading": Loading()}),
    "cold_random_reads": (Settings("records", cold=True, step=0.01), {"fetched": True}),
    "checkpoint_stall": (Settings(save_every=10), {"save_every": 100}),
    "shallow_prefetch": (Settings(prefetch=1, loading=Loading(burst=0.4), shuffle=False), {"prefetch": 4}),
    "slow_decode": (Settings(loading=Loading(work=0.02)), {"loading": Loading()}),
    "uneven_ranks": (Settings(ranks=2, workers=3, loading=Loading(decode=0.015), slow_workers=1), {"slow_workers": 3}),
    "few_loaders, of a stream": (Settings("stream", Loading(decode=0.004), 8, workers=1, shuffle=False), {"workers": 4}),
    "healthy": (Settings(), None),
    "healthy, without loaders": (Settings(workers=0), None),
    "healthy, a stream": (Settings("stream", batch=16, shuffle=False), None),
    "healthy, two ranks": (Settings(ranks=2), None),
}


def train(folder: Path, settings: Settings, rank: int = 0, epochs: int = 3) -> float:
    """Return the seconds a step."""
    data = DATA[settings.data](folder, settings.loading)
    workers = settings.workers
    if settings.slow_workers is not None and rank == settings.ranks - 1:
        workers = settings.slow_workers
    sampler = DistributedSampler(data, settings.ranks, rank) if settings.ranks > 1 else None
    loader = DataLoader(
        data, settings.batch, settings.shuffle and sampler is None, sampler, num_workers=workers,
        prefetch_factor=settings.prefetch if workers else None,
    )  # fmt: skip
    state, gradient, steps, spent = torch.zeros(20_000_000), torch.zeros(1000), 0, 0.0
    for _ in range(epochs):
        begun = time.monotonic()
        for _ in loader:
            time.sleep(settings.step)
            if settings.ranks > 1:
                dist.all_reduce(gradient)
            steps += 1
            if settings.save_every and steps % settings.save_every == 0:
                with (folder.parent / "checkpoint.pt").open("wb") as file:
                    torch.save(state, file)
                    os.fsync(file.fileno())
        spent += time.monotonic() - begun
    return spent / steps


def train_rank(rank: int, folder: Path, settings: Settings) -> None:
    """Train one of several ranks; the first one prints the seconds a step."""
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{_PORT}", rank=rank, world_size=settings.ranks)
    step_s = train(folder, settings, rank)
    if rank == 0:
        print(step_s)
    dist.destroy_process_group()


if __name__ == "__main__":
    planted, mended = JOBS[sys.argv[2]]
    own = replace(planted, **((mended or {}) if len(sys.argv) > 3 else {}))
    folder = Path(sys.argv[1]) / own.data
    make_data(folder, own.data)
    (evict if own.cold and not own.fetched else fetch)(folder)
    if own.ranks > 1:
        start_processes(train_rank, (folder, own), own.ranks, start_method="fork")
    else:
        print(train(folder, own))
