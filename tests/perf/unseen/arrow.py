"""Mapped Arrow tables, random rows of varying size, as the datasets library reads them; validation in a table of its own."""

from argparse import Namespace
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from command_line import command_line
from torch.utils.data import DataLoader, Dataset
from torch_parts import save, train


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


def _made(folder: Path, names: list[str], rows: int) -> list[Path]:
    folder.mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / name for name in names]
    for path in (path for path in paths if not path.exists()):
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, pa.schema([("content", pa.binary())])) as stream:
            for _ in range(rows // 20):
                content = [rng.bytes(int(rng.integers(20_000, 100_000))) for _ in range(20)]
                stream.write(pa.record_batch([pa.array(content, pa.binary())], ["content"]))
    return paths


def main(job: Namespace) -> None:
    folder = job.folder
    training = Rows(_made(folder / "arrow", ["train-0.arrow", "train-1.arrow"], 160))
    validation = Rows(_made(folder / "arrow", ["validation.arrow"], 80))
    (out := folder / f"out{job.seed}").mkdir(exist_ok=True)
    torch.manual_seed(job.seed)
    for epoch in range(4):
        for rows, shuffle, scale, compute_s in ((training, True, job.scale, 0.06), (validation, False, 1, 0.03)):
            loader = DataLoader(rows, batch_size=8 * scale, shuffle=shuffle, num_workers=job.workers)
            for _ in train(loader, compute_s * scale):
                pass
        save(out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    main(command_line())
