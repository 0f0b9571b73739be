"""Mapped Arrow tables, random rows of varying size, as the datasets library reads them; validation in a table of its own."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from command_line import JobOptions
from torch.utils.data import Dataset
from torch_parts import launch, train_and_validate


class Rows(Dataset):
    def __init__(self, paths: list[Path]) -> None:
        self._tables = [pa.ipc.open_stream(pa.memory_map(str(path))).read_all() for path in paths]
        self._first = np.cumsum([0, *(len(table) for table in self._tables)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, index: int) -> torch.Tensor:
        table = int(np.searchsorted(self._first, index, side="right")) - 1
        content = self._tables[table]["content"][index - int(self._first[table])].as_py()
        return torch.frombuffer(bytearray(content[:20_000]), dtype=torch.uint8)


def _made(job: JobOptions) -> list[list[Path]]:
    (folder := job.data("arrow")).mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    training, validation = [folder / "train-0.arrow", folder / "train-1.arrow"], [folder / "validation.arrow"]
    for path, rows in zip((*training, *validation), (160, 160, 80), strict=True):
        if path.exists():
            continue
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, pa.schema([("content", pa.binary())])) as stream:
            for _ in range(job.samples(rows) // 20):
                content = [rng.bytes(int(rng.integers(20_000, 100_000))) for _ in range(20)]
                stream.write(pa.record_batch([pa.array(content, pa.binary())], ["content"]))
    return [training, validation]


def main(job: JobOptions, sets: list[list[Path]]) -> None:
    train_and_validate(job, *map(Rows, sets))


if __name__ == "__main__":
    launch(_made, main)
