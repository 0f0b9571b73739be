"""A small real PyTorch job with a planted problem: python advise_job.py DATA KIND [mended]. It prints its seconds a step.

The first call makes the data. KIND is one of JOBS; `healthy` jobs have no problem. Nothing is logged during training.
"""

import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset

FILES, FILE_BYTES, BATCH = 400, 200_000, 4


@dataclass(frozen=True)
class Settings:
    """The settings of a job; times are in seconds."""

    workers: int = 2
    prefetch: int = 2
    decode: float = 0.0  # a wait for each sample, which takes no processor
    work: float = 0.0  # work of a processor for each sample
    burst: float = 0.0  # a wait for the first sample of each eighth batch
    step: float = 0.02
    save_every: int = 0
    shuffle: bool = True


JOBS: dict[str, tuple[Settings, dict[str, Any]]] = {
    "few_loaders": (Settings(workers=1, decode=0.015), {"workers": 4}),
    "shallow_prefetch": (Settings(prefetch=1, burst=0.4, shuffle=False), {"prefetch": 4}),
    "checkpoint_stall": (Settings(save_every=10), {"save_every": 100}),
    "slow_decode": (Settings(work=0.02), {"work": 0.0}),
    "healthy": (Settings(), {}),
    "healthy, without loaders": (Settings(workers=0), {}),
}


class Samples(Dataset[torch.Tensor]):
    """One file per sample."""

    def __init__(self, folder: Path, settings: Settings) -> None:
        self._files, self._settings = sorted(folder.glob("*.bin")), settings

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        data = self._files[index].read_bytes()
        time.sleep(self._settings.decode + (self._settings.burst if index % (8 * BATCH) == 0 else 0))
        end = time.process_time() + self._settings.work
        while time.process_time() < end:
            pass
        return torch.tensor(len(data))


def make_data(folder: Path) -> None:
    """Write the files, unless the folder exists."""
    if not folder.exists():
        folder.mkdir(parents=True)
        for number in range(FILES):
            (folder / f"{number:04d}.bin").write_bytes(os.urandom(FILE_BYTES))


def train(folder: Path, settings: Settings, epochs: int = 3) -> float:
    """Return the seconds a step."""
    prefetch = settings.prefetch if settings.workers else None
    loader = DataLoader(
        Samples(folder, settings), BATCH, settings.shuffle, num_workers=settings.workers, prefetch_factor=prefetch
    )
    state, steps, spent = torch.zeros(20_000_000), 0, 0.0
    for _ in range(epochs):
        begun = time.monotonic()
        for _ in loader:
            time.sleep(settings.step)
            steps += 1
            if settings.save_every and steps % settings.save_every == 0:
                with (folder.parent / "checkpoint.pt").open("wb") as file:
                    torch.save(state, file)
                    os.fsync(file.fileno())
        spent += time.monotonic() - begun
    return spent / steps


if __name__ == "__main__":
    data = Path(sys.argv[1])
    make_data(data)
    planted, mended = JOBS[sys.argv[2]]
    print(train(data, replace(planted, **(mended if len(sys.argv) > 3 else {}))))
