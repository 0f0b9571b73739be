"""A corpus of JSON lines with an index of their offsets, lines at random; four small batches are accumulated for a step."""

import json
import time
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_LINES, _ACCUMULATED = 800, 4


class Lines(Dataset):
    def __init__(self, path: Path) -> None:
        self._path, self._offsets, self._file = path, np.load(path.with_suffix(".npy")), None

    def __len__(self) -> int:
        return len(self._offsets)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._file is None:  # each loader opens it for itself
            self._file = self._path.open("rb")
        self._file.seek(self._offsets[index])
        return torch.tensor(json.loads(self._file.readline())["tokens"][:1000])


def _made(job: JobOptions) -> Path:
    if not (path := job.data("json_lines") / "corpus.jsonl").exists():
        path.parent.mkdir(exist_ok=True)
        rng, offsets = np.random.default_rng(7), []
        with path.open("w") as file:
            for _ in range(job.samples(_LINES)):
                offsets.append(file.tell())
                file.write(json.dumps({"tokens": rng.integers(50_000, size=int(rng.integers(1000, 6000))).tolist()}) + "\n")
        np.save(path.with_suffix(".npy"), offsets)
    return path


def main(job: JobOptions, path: Path) -> None:
    def update(_epoch: int, step: int) -> None:
        if step % _ACCUMULATED == 0:
            time.sleep(job.step_s(0.02))

    train_and_validate(job, Lines(path), batch=4, step_s=0.02, epochs=3, state_bytes=24_000_000, after_step=update)


if __name__ == "__main__":
    launch(_made, main)
