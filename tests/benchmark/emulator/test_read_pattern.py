"""The twin's reads, call by call, against those of a PyTorch DataLoader over the same files."""

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from iotwin.workload_yaml import dump, load
from tests.benchmark.strace import Call, needs_strace, strace

# pread64 and mmap are watched so that reading in another way would show.
READ_CALLS = "openat,read,pread64,readv,mmap,lseek,dup,fcntl,close"

TWIN = """
import sys
from iotwin.workload_yaml import load
from iotwin.benchmark.emulator.run import emulate
emulate(load(sys.argv[1]), None)
"""

# What the real job does, in few words: workers load both files of a case; batches in order, none left over.
REAL = """
import sys, time
from pathlib import Path
import numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Cases(Dataset):
    def __init__(self, names):
        self.names = names
    def __len__(self):
        return len(self.names)
    def __getitem__(self, index):
        image, mask = (np.load(f"{self.names[index]}_{half}.npy") for half in "xy")
        return torch.from_numpy(image[:, :4, :4, :4].copy()), torch.from_numpy(mask[:, :4, :4, :4].copy())

workers, batch_size, epochs, names = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
for _ in range(epochs):
    for batch in DataLoader(Cases(names), batch_size=batch_size, num_workers=workers, drop_last=True):
        time.sleep(0.001)
"""


def read_calls(processes: Sequence[Sequence[Call]], folder: Path) -> list[list[tuple[str, str, int | None, int | None]]]:
    """The calls on files of `folder`, of each process that makes any: name, file, bytes asked for, result."""
    of_process = (
        [
            (call.name, Path(call.paths[-1]).name, call.requested, call.result if call.name in ("read", "close") else None)
            for call in calls
            if call.paths and Path(call.paths[-1]).parent == folder
        ]
        for calls in processes
    )
    return [calls for calls in of_process if calls]


@needs_strace
@pytest.mark.torch
@pytest.mark.parametrize(("workers", "batch_size"), [(2, 2), (3, 1), (0, 3)])
def test_every_process_makes_the_calls_of_a_dataloader(
    twin_path: Path, cases: Path, tmp_path: Path, workers: int, batch_size: int
) -> None:
    pytest.importorskip("torch", reason="needs PyTorch, for the DataLoader to compare with")
    names = [f"case_{index:05d}" for index in (3, 1, 4, 0, 5, 9, 2)]
    overrides = [
        "workflow={checkpoint: false, evaluation: false}",
        "reader.sample_shuffle=off",
        f"reader.read_threads={workers}",
        f"reader.batch_size={batch_size}",
        f"twin.train_files=[{','.join(names)}]",
    ]
    dump(load(twin_path, overrides), twin_path)
    twin = strace([sys.executable, "-c", TWIN, str(twin_path)], READ_CALLS, tmp_path)
    paths = [str(cases / name) for name in names]
    real = strace([sys.executable, "-c", REAL, str(workers), str(batch_size), "2", *paths], READ_CALLS, tmp_path)
    seen, expected = read_calls(twin, cases), read_calls(real, cases)
    assert len(seen) == max(1, 2 * workers)  # fresh workers in each of two epochs
    assert sum(call[0] == "read" for calls in seen for call in calls) > 2 * len(names)
    assert sorted(seen) == sorted(expected)


@needs_strace
def test_every_epoch_reads_every_training_case_once_and_only_evaluation_the_others(
    twin_path: Path, cases: Path, tmp_path: Path
) -> None:
    dump(load(twin_path, ["train.epochs=3", "workflow.checkpoint=false", "evaluation.eval_after_epoch=2"]), twin_path)
    processes = read_calls(strace([sys.executable, "-c", TWIN, str(twin_path)], "openat", tmp_path), cases)
    opened = [[name for _, name, _, _ in calls] for calls in processes]
    names = {f"case_{index:05d}" for index in range(10)}
    evaluation = {"case_00000", "case_00005"}
    # Workers start in pairs: for epochs 1 and 2, the evaluation after 2, epoch 3, and the evaluation after it.
    passes = [opened[start] + opened[start + 1] for start in range(0, len(opened), 2)]
    assert len(passes) == 5
    for number, files in enumerate(passes):
        wanted = evaluation if number in (2, 4) else names - evaluation
        assert sorted(files) == sorted(f"{name}_{half}.npy" for name in wanted for half in "xy")
    assert passes[0] != passes[1] != passes[3]
