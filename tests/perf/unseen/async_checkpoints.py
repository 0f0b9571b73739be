"""Several HDF5 files of frames, a frame a sample; every 25 steps a thread writes a checkpoint while training goes on."""

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from pathlib import Path

import h5py
import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, save, train_and_validate

_FILES, _FRAMES, _SHAPE, _EVERY = 6, 64, (100, 120), 25


class Frames(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths, self._files = paths, {}

    def __len__(self) -> int:
        return len(self._paths) * _FRAMES

    def __getitem__(self, index: int) -> torch.Tensor:
        file, frame = divmod(index, _FRAMES)
        if file not in self._files:  # each loader opens it for itself
            self._files[file] = h5py.File(self._paths[file], rdcc_nbytes=0)
        return torch.from_numpy(self._files[file]["frames"][frame])


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("frames")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"run{i:02}.h5" for i in range(job.samples(_FILES))]
    for path in (path for path in paths if not path.exists()):
        with h5py.File(path, "w") as file:
            file.create_dataset("frames", data=rng.random((_FRAMES, *_SHAPE), np.float32), chunks=(1, *_SHAPE))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    written: list[Future] = []
    steps = count(1)  # of all epochs
    with ThreadPoolExecutor(1) as writer:

        def save_later(_epoch: int, _step: int) -> None:
            if (done := next(steps)) % _EVERY == 0:
                if written:
                    written[-1].result()
                written.append(writer.submit(save, job.out / f"step_{done}.pt", 24_000_000))

        train_and_validate(job, Frames(paths), state_bytes=0, after_step=save_later)


if __name__ == "__main__":
    launch(_made, main)
