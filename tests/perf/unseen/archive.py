"""Members of one zip archive, each read through the archive's buffer when it is drawn; validation from an archive beside it."""

import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

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


def _made(path: Path, members: int) -> Path:
    if not path.exists():
        rng = np.random.default_rng(members)
        path.parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(members):
                archive.writestr(f"{number:04}.bin", rng.bytes(int(rng.integers(_LEAST_BYTES, _MOST_BYTES))))
    return path


def main(job: Namespace) -> None:
    folder = job.folder / "archives"
    training, validation = (Members(_made(folder / f"{members}.zip", members)) for members in (_TRAINING, _VALIDATION))
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    torch.manual_seed(job.seed)
    for epoch in range(3):
        for members, shuffle, scale, compute_s in ((training, True, job.scale, 0.05), (validation, False, 1, 0.03)):
            loader = DataLoader(members, batch_size=16 * scale, shuffle=shuffle, num_workers=job.workers)
            for _ in train(loader, compute_s * scale):
                pass
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(command_line())
