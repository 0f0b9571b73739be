"""Rows of an SQLite table, each selected by its key when it is drawn; validation is the table's last rows."""

import sqlite3
from pathlib import Path

import numpy as np
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate

_TRAINING, _VALIDATION, _LEAST_BYTES, _MOST_BYTES = 280, 64, 20_000, 60_000


class Rows(Dataset):
    def __init__(self, path: Path, keys: range) -> None:
        self._path, self._keys, self._table = path, keys, None

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._table is None:  # each loader opens it for itself
            self._table = sqlite3.connect(f"file:{self._path}?mode=ro", uri=True)
        (content,) = self._table.execute("SELECT content FROM samples WHERE id = ?", (self._keys[index],)).fetchone()
        return torch.frombuffer(bytearray(content[:_LEAST_BYTES]), dtype=torch.uint8).float()


def _made(job: JobOptions) -> Path:
    if not (path := job.data("sqlite") / "samples.db").exists():
        path.parent.mkdir()
        rng, table = np.random.default_rng(7), sqlite3.connect(path)
        table.execute("CREATE TABLE samples (id INTEGER PRIMARY KEY, content BLOB)")
        sizes = rng.integers(_LEAST_BYTES, _MOST_BYTES, job.samples(_TRAINING + _VALIDATION)).tolist()
        table.executemany("INSERT INTO samples VALUES (?, ?)", ((i, rng.bytes(size)) for i, size in enumerate(sizes)))
        table.commit()
        table.close()
    return path


def main(job: JobOptions, path: Path) -> None:
    training, every = job.samples(_TRAINING), job.samples(_TRAINING + _VALIDATION)
    train_and_validate(job, Rows(path, range(training)), Rows(path, range(training, every)))


if __name__ == "__main__":
    launch(_made, main)
