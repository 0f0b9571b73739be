"""Recordings of speech, of which each epoch hears a random second: every .wav file is opened for its crop."""

import wave
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_RATE, _CLIPS = 16_000, 320


class Clips(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, index: int) -> torch.Tensor:
        with wave.open(str(self._paths[index])) as clip:
            clip.setpos(int(torch.randint(clip.getnframes() - _RATE, (1,))))
            return torch.frombuffer(bytearray(clip.readframes(_RATE)), dtype=torch.int16)


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("clips")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"{number:04}.wav" for number in range(job.samples(_CLIPS))]
    for path in paths:
        frames = rng.bytes(2 * int(rng.integers(3 * _RATE, 6 * _RATE)))
        if not path.exists():
            with wave.open(str(path), "wb") as clip:
                clip.setparams((1, 2, _RATE, 0, "NONE", ""))
                clip.writeframes(frames)
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    train_and_validate(job, Clips(paths), state_bytes=8_000_000)


if __name__ == "__main__":
    launch(_made, main)
