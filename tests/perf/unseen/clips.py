"""Recordings of speech, of which each epoch hears a random second: every .wav file is opened for its crop."""

import wave
from argparse import Namespace
from pathlib import Path

import numpy as np
import torch
from command_line import command_line
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train

_RATE, _CLIPS, _EPOCHS = 16_000, 320, 4


class Clips(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with wave.open(str(self._paths[index])) as clip:
            clip.setpos(int(torch.randint(clip.getnframes() - _RATE, (1,))))
            return torch.frombuffer(bytearray(clip.readframes(_RATE)), dtype=torch.int16)


def _made(folder: Path) -> list[Path]:
    folder.mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"{number:04}.wav" for number in range(_CLIPS)]
    for path in paths:
        frames = rng.bytes(2 * int(rng.integers(3 * _RATE, 6 * _RATE)))
        if not path.exists():
            with wave.open(str(path), "wb") as clip:
                clip.setparams((1, 2, _RATE, 0, "NONE", ""))
                clip.writeframes(frames)
    return paths


def main(job: Namespace) -> None:
    torch.manual_seed(job.seed)
    loader = DataLoader(Clips(_made(job.folder / "clips")), 8 * job.scale, shuffle=True, num_workers=job.workers)
    (out := job.folder / f"out{job.seed}").mkdir(exist_ok=True)
    for epoch in range(_EPOCHS):
        for _ in train(loader, 0.06 * job.scale):
            pass
        save(out / f"epoch_{epoch}.pt", 8_000_000)


if __name__ == "__main__":
    main(command_line())
