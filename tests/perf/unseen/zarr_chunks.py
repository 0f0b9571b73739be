"""A folder of chunk files as zarr keeps an array, a patch is four neighbouring ones; persistent loaders, two sizes of chunk."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from job_parts import make_files
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

_ROWS, _COLUMNS = 24, 24


class Patches(Dataset):
    def __init__(self, folder: Path, seed: int) -> None:
        self._folder, self._rng = folder, np.random.default_rng(seed)
        self._places = self._rng.integers(0, _ROWS - 1, (480, 2))

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> torch.Tensor:
        row, column = self._places[index].tolist()
        parts = [(self._folder / f"{row + r}.{column + c}").read_bytes() for r in (0, 1) for c in (0, 1)]
        return torch.frombuffer(bytearray(b"".join(parts)[:30_000]), dtype=torch.uint8)


def main(job: Namespace) -> None:
    folder = job.folder
    names = [f"{row}.{column}" for row in range(_ROWS) for column in range(_COLUMNS)]
    make_files(folder / "zarr", names, [32_768] * len(names))
    (out := folder / f"out{job.seed}").mkdir(exist_ok=True)
    patches = Patches(folder / "zarr", job.seed)
    loader = DataLoader(patches, batch_size=8 * job.scale, num_workers=job.workers, persistent_workers=True)
    for epoch in range(3):
        for _ in train(loader, 0.06 * job.scale):
            pass
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(command_line())
