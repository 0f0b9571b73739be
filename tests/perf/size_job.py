"""A small real PyTorch job that reads its samples from files: python size_job.py DATA LOADERS. It prints its AU as JSON.

The first call makes the data. The step takes a fixed time, so that storage alone decides the AU. The AU is that of
`iotwin.training`: computation, divided by the time after the first step of the epoch.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

FILES, FILE_BYTES, BATCH, STEP_S = 640, 32 << 10, 8, 0.05


class Samples(Dataset):
    """One file per sample."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(self._files[index].read_bytes()), dtype=torch.uint8)


def make_data(folder: Path) -> None:
    """Write the files, unless the folder exists."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    for number in range(FILES):
        (folder / f"{number:04d}.bin").write_bytes(os.urandom(FILE_BYTES))


def train(files: list[Path], loaders: int) -> float:
    """Return the AU of the job, which trains one epoch."""
    torch.set_num_threads(1)
    torch.manual_seed(7)
    computed, first = 0.0, None
    for batch in DataLoader(Samples(files), batch_size=BATCH, shuffle=True, num_workers=loaders):
        begun = time.perf_counter()
        batch.sum().item()
        time.sleep(STEP_S)
        ended = time.perf_counter()
        if first is None:
            first = ended
        else:
            computed += ended - begun
    return computed / (ended - first)


if __name__ == "__main__":
    data = Path(sys.argv[1])
    make_data(data)
    print(json.dumps({"au": train(sorted(data.glob("*.bin")), int(sys.argv[2]))}))
