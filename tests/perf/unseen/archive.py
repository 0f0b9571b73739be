"""Members of one zip archive, each read through the archive's buffer when it is drawn; validation from an archive beside it."""

import zipfile
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_TRAINING, _VALIDATION, _LEAST_BYTES, _MOST_BYTES = 800, 96, 8_000, 40_000


class Members(Dataset):
    def __init__(self, path: Path) -> None:
        self._path, self._archive = path, None
        with zipfile.ZipFile(path) as archive:
            self._names = archive.namelist()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._archive is None:  # each loader opens it for itself
            self._archive = zipfile.ZipFile(self._path)
        member = self._archive.read(self._names[index])
        return torch.frombuffer(bytearray(member[:_LEAST_BYTES]), dtype=torch.uint8).float()


def _made(job: JobOptions) -> list[Path]:
    paths = []
    for usual in (_TRAINING, _VALIDATION):
        members = job.samples(usual)
        paths.append(path := job.data("archives") / f"{members}.zip")
        if not path.exists():
            rng = np.random.default_rng(members)
            path.parent.mkdir(parents=True, exist_ok=True)
            with zipfile.ZipFile(path, "w") as archive:
                for number in range(members):
                    archive.writestr(f"{number:04}.bin", rng.bytes(int(rng.integers(_LEAST_BYTES, _MOST_BYTES))))
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    train_and_validate(job, *map(Members, paths), batch=16, step_s=0.05, epochs=3)


if __name__ == "__main__":
    launch(_made, main)
