"""One HDF5 file through h5py, a chunk and a label a sample; validation is a range of the same file."""

from argparse import Namespace
from pathlib import Path

import h5py
import numpy as np
import torch
from command_line import command_line
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

_SAMPLES, _TRAINING, _SHAPE = 360, 288, (96, 128)


class Chunks(Dataset):
    def __init__(self, path: Path, first: int, last: int) -> None:
        self._path, self._first, self._last, self._file = path, first, last, None

    def __len__(self) -> int:
        return self._last - self._first

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._file is None:
            self._file = h5py.File(self._path, rdcc_nbytes=0)
        image = self._file["images"][self._first + index]
        return torch.from_numpy(image) + int(self._file["labels"][self._first + index])


def _made(path: Path) -> Path:
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng(7)
        with h5py.File(path, "w") as file:
            images = file.create_dataset("images", (_SAMPLES, *_SHAPE), np.float32, chunks=(1, *_SHAPE))
            for i in range(_SAMPLES):
                images[i] = rng.random(_SHAPE, np.float32)
            file.create_dataset("labels", data=rng.integers(10, size=_SAMPLES))
    return path


def main(job: Namespace) -> None:
    folder = job.folder
    path = _made(folder / "hdf5" / "data.h5")
    (out := folder / f"out{job.seed}").mkdir(exist_ok=True)
    torch.manual_seed(job.seed)
    training, validation = Chunks(path, 0, _TRAINING), Chunks(path, _TRAINING, _SAMPLES)
    loaders = [
        (DataLoader(training, batch_size=8 * job.scale, shuffle=True, num_workers=job.workers), 0.06 * job.scale),
        (DataLoader(validation, batch_size=8, num_workers=job.workers), 0.03),
    ]
    for epoch in range(4):
        for loader, compute_s in loaders:
            for _ in train(loader, compute_s):
                pass
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(command_line())
