"""One HDF5 file through h5py, a chunk and a label a sample; validation is a range of the same file."""

from pathlib import Path

import h5py
import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

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


def _made(job: JobOptions) -> Path:
    path, samples = job.data("hdf5") / "data.h5", job.samples(_SAMPLES)
    if not path.exists():
        path.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng(7)
        with h5py.File(path, "w") as file:
            images = file.create_dataset("images", (samples, *_SHAPE), np.float32, chunks=(1, *_SHAPE))
            for i in range(samples):
                images[i] = rng.random(_SHAPE, np.float32)
            file.create_dataset("labels", data=rng.integers(10, size=samples))
    return path


def main(job: JobOptions, path: Path) -> None:
    training, every = job.samples(_TRAINING), job.samples(_SAMPLES)
    train_and_validate(job, Chunks(path, 0, training), Chunks(path, training, every))


if __name__ == "__main__":
    launch(_made, main)
