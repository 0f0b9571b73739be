"""A .pt file a sample, start from a model of another file, checkpoints renamed; --resume goes on from the last of them."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train


class Features(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.load(self._paths[index])["features"][:4000]


def _made(folder: Path, files: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"s{i:04}.pt" for i in range(files)]
    for path in (path for path in paths if not path.exists()):
        torch.save({"features": torch.from_numpy(rng.random(int(rng.integers(20_000, 50_000)), np.float32))}, path)
    return paths


def main(job: Namespace) -> None:
    folder = job.folder
    training, validation = _made(folder / "features", 200), _made(folder / "held", 64)
    start = folder / ("checkpoint.pt" if job.resume else "pretrained.bin")
    if not start.exists():
        save(start, 24_000_000)
    torch.load(start)
    (out := folder / f"out{job.seed}").mkdir(exist_ok=True)
    torch.manual_seed(job.seed)
    for epoch in range(4):
        for paths, shuffle, scale, compute_s in ((training, True, job.scale, 0.06), (validation, False, 1, 0.03)):
            loader = DataLoader(Features(paths), batch_size=8 * scale, shuffle=shuffle, num_workers=job.workers)
            for _ in train(loader, compute_s * scale):
                pass
        save(out / f"epoch_{epoch}.pt", 12_000_000, renamed=True)


if __name__ == "__main__":
    main(command_line("resume"))
