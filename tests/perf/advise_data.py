"""The data sets of tests/perf/advise_job.py: a file for each sample, records of one large file, and a stream of Parquet files."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

FILES, FILE_BYTES = 400, 200_000
RECORDS, RECORD_BYTES, RECORDS_OF_SAMPLE = 160_000, 4096, 400  # of one file
SHARDS, GROUPS, GROUP_ROWS = 8, 5, 50  # of a Parquet data set; a row has ROW_BYTES
ROW_BYTES = 2000


@dataclass(frozen=True)
class Loading:
    """How a sample is loaded; times are in seconds."""

    decode: float = 0.0  # a wait for each sample, which takes no processor
    work: float = 0.0  # work of a processor for each sample
    burst: float = 0.0  # a wait for the first sample of each 32
    request: int = 0  # bytes of a read, without a buffer; 0: the whole file by one read
    reopen: bool = False  # records: open the file for each

    def spend(self, index: int) -> None:
        """Spend the time of decoding the sample at `index`."""
        time.sleep(self.decode + (self.burst if index % 32 == 0 else 0))
        end = time.process_time() + self.work
        while time.process_time() < end:
            pass


class Files(Dataset[torch.Tensor]):
    """One file for each sample."""

    def __init__(self, folder: Path, loading: Loading) -> None:
        self._files, self._loading = sorted(folder.glob("*.bin")), loading

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._loading.request:
            size = 0
            with self._files[index].open("rb", buffering=0) as file:
                while part := file.read(self._loading.request):
                    size += len(part)
        else:
            size = len(self._files[index].read_bytes())
        self._loading.spend(index)
        return torch.tensor(size)


class Records(Dataset[torch.Tensor]):
    """Samples of RECORDS_OF_SAMPLE records each, which lie scattered in one file."""

    def __init__(self, folder: Path, loading: Loading) -> None:
        self._path, self._loading, self._file = folder / "records.dat", loading, -1

    def __len__(self) -> int:
        return RECORDS // RECORDS_OF_SAMPLE

    def __getitem__(self, index: int) -> torch.Tensor:
        size = 0
        for record in range(index, RECORDS, len(self)):
            if self._loading.reopen or self._file < 0:
                self._file = os.open(self._path, os.O_RDONLY)
            size += len(os.pread(self._file, RECORD_BYTES, record * RECORD_BYTES))
            if self._loading.reopen:
                os.close(self._file)
        self._loading.spend(index)
        return torch.tensor(size)


class Stream(IterableDataset[torch.Tensor]):
    """Rows of Parquet files in their order. Each worker reads every so many files."""

    def __init__(self, folder: Path, loading: Loading) -> None:
        self._files, self._loading = sorted(folder.glob("*.parquet")), loading

    def __iter__(self) -> Iterator[torch.Tensor]:
        info = get_worker_info()
        for path in self._files[info.id :: info.num_workers] if info else self._files:
            with pq.ParquetFile(path) as file:
                for group in range(file.num_row_groups):
                    for index, row in enumerate(file.read_row_group(group).column("row").to_pylist()):
                        self._loading.spend(index)
                        yield torch.tensor(len(row))


DATA = {"files": Files, "records": Records, "stream": Stream}


def make_data(folder: Path, data: str) -> None:
    """Write the data set, unless the folder exists."""
    if folder.exists():
        return
    folder.mkdir(parents=True)
    random = np.random.default_rng(1)
    if data == "files":
        for number in range(FILES):
            (folder / f"{number:04d}.bin").write_bytes(random.bytes(FILE_BYTES))
    elif data == "records":
        (folder / "records.dat").write_bytes(random.bytes(RECORDS * RECORD_BYTES))
    else:
        for number in range(SHARDS):
            rows = [random.bytes(ROW_BYTES) for _ in range(GROUPS * GROUP_ROWS)]
            pq.write_table(pa.table({"row": rows}), folder / f"{number}.parquet", GROUP_ROWS)


def evict(folder: Path) -> None:
    """Remove the data set from the page cache."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def fetch(folder: Path) -> None:
    """Read the data set, so that the page cache holds it."""
    for path in folder.iterdir():
        path.read_bytes()
