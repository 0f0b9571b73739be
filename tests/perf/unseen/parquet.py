"""Parquet through pyarrow: row groups by Arrow's I/O threads in each loader, many batches of one file."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from command_line import JobOptions
from torch.utils.data import IterableDataset, get_worker_info
from torch_parts import launch, loader, save, train

_FILES, _GROUPS, _ROWS, _WIDTH = 6, 4, 320, 120


class Groups(IterableDataset):
    def __init__(self, paths: list[Path], seed: int) -> None:
        self._paths, self._seed = paths, seed

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        rng = np.random.default_rng((self._seed, worker.id))
        for path in rng.permutation(self._paths[worker.id :: worker.num_workers]):
            file = pq.ParquetFile(path, pre_buffer=True)
            for group in rng.permutation(file.num_row_groups):
                table = file.read_row_group(int(group), use_threads=True)
                columns = np.stack([table[name].to_numpy() for name in table.column_names], axis=1)
                yield from torch.from_numpy(columns)


def _made(job: JobOptions) -> list[Path]:
    (folder := job.data("parquet")).mkdir(exist_ok=True)
    rng, paths = np.random.default_rng(7), [folder / f"part-{i}.parquet" for i in range(job.samples(_FILES))]
    for path in (path for path in paths if not path.exists()):
        columns = {f"c{i}": rng.random(_GROUPS * _ROWS, np.float32) for i in range(_WIDTH)}
        pq.write_table(pa.table(columns), path, row_group_size=_ROWS, compression="none", use_dictionary=False)
    return paths


def main(job: JobOptions, paths: list[Path]) -> None:
    for epoch in range(job.epochs(2)):
        groups = Groups(paths[job.rank :: job.ranks], job.seed + 100 * epoch)
        for _ in train(loader(job, groups, job.batch(64)), job.step_s(0.06)):
            pass
        save(job.out / f"epoch_{epoch}.pt", 6_000_000)


if __name__ == "__main__":
    launch(_made, main)
