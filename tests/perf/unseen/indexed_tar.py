"""An image and its caption for each sample, members of one tar file that are read at the offsets of an index."""

import io
import json
import os
import tarfile
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_SAMPLES = 320


class Members(Dataset):
    def __init__(self, path: Path) -> None:
        self._path, self._file = path, None
        self._members = json.loads(path.with_suffix(".json").read_text())

    def __len__(self) -> int:
        return len(self._members) // 2

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._file is None:  # each loader opens it for itself
            self._file = os.open(self._path, os.O_RDONLY)
        image, _caption = (os.pread(self._file, size, offset) for offset, size in self._members[2 * index : 2 * index + 2])
        return torch.frombuffer(bytearray(image[:30_000]), dtype=torch.uint8).float()


def _made(job: JobOptions) -> Path:
    if not (path := job.data("indexed_tar") / "samples.tar").exists():
        path.parent.mkdir(exist_ok=True)
        rng = np.random.default_rng(7)
        with tarfile.open(path, "w") as tar:
            for i in range(job.samples(_SAMPLES)):
                for kind, size in (("jpg", int(rng.integers(30_000, 90_000))), ("txt", int(rng.integers(100, 400)))):
                    info = tarfile.TarInfo(f"{i:05}.{kind}")
                    info.size = size
                    tar.addfile(info, io.BytesIO(rng.bytes(size)))
        with tarfile.open(path) as tar:
            path.with_suffix(".json").write_text(json.dumps([(member.offset_data, member.size) for member in tar]))
    return path


def main(job: JobOptions, path: Path) -> None:
    train_and_validate(job, Members(path))


if __name__ == "__main__":
    launch(_made, main)
