"""An image and its mask for each sample, of two kinds (.jpg, .png) in folders of their own; validation on others, unshuffled."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from PIL import Image
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

_TRAINING, _VALIDATION, _SIDE = 240, 48, 192


class Pairs(Dataset):
    def __init__(self, folder: Path, numbers: range) -> None:
        self._paths = [[folder / kind / f"{number:04}.{kind}" for kind in ("jpg", "png")] for number in numbers]

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        image, mask = (np.asarray(Image.open(path)) for path in self._paths[index])
        return torch.from_numpy(np.concatenate([image.ravel(), mask.ravel()])).float()


def _made(folder: Path) -> Path:
    rng = np.random.default_rng(7)
    for kind, shape in (("jpg", (_SIDE, _SIDE, 3)), ("png", (_SIDE, _SIDE))):
        (folder / kind).mkdir(parents=True, exist_ok=True)
        paths = [folder / kind / f"{number:04}.{kind}" for number in range(_TRAINING + _VALIDATION)]
        for path in (path for path in paths if not path.exists()):
            Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return folder


def main(job: Namespace) -> None:
    folder = _made(job.folder / "pairs")
    training, validation = Pairs(folder, range(_TRAINING)), Pairs(folder, range(_TRAINING, _TRAINING + _VALIDATION))
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    torch.manual_seed(job.seed)
    for epoch in range(3):
        for pairs, shuffle, scale, compute_s in ((training, True, job.scale, 0.06), (validation, False, 1, 0.03)):
            for _ in train(DataLoader(pairs, batch_size=8 * scale, shuffle=shuffle, num_workers=job.workers), compute_s * scale):
                pass
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(command_line())
