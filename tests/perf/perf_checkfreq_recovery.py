"""What it takes to go on from a checkpoint: reads of the samples before it, and seconds until a killed job is where it was.

The job that is killed and the one that goes on are this module, run with a store as its argument.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from iotwin.common.checkpoints import newest, read_rank
from iotwin.common.progress import note
from iotwin.workloads.checkfreq.batches import CFBatches
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager
from tests.perf.figures import Figure
from tests.perf.perf_checkfreq_overhead import Training

_KILLS, _INTERVAL = 10, 8
_SAMPLES, _BATCH, _KEPT, _STOPPED = 64, 8, 4, 5  # a checkpoint every fourth step, and the step after which the job vanishes


def measure() -> list[Figure]:
    """Return the figures."""
    return [*_reads(), *_going_on()]


def _reads() -> list[Figure]:
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        base = Path(name).resolve()
        _run("iotwin", "generate", "checkfreq", "--samples", _SAMPLES, "--scale", 0.1, "-o", base / "data")
        job = (
            "iotwin.workloads.checkfreq", "--data", base / "data", "--output", base / "output", "--preset", "tiny", "-b", _BATCH,
            "--epochs", 1, "--workers", 0, "--noeval", "--chk-freq", _KEPT,
        )  # fmt: skip
        _run(*job, "--steps_per_run", _STOPPED)
        command = (sys.executable, "-m", *job, "--resume")
        _run("iotwin", "trace", "-o", base / "t", "--", *command)
        rows = json.loads(_run("iotwin", "stats", base / "t", "--by", "file", "--json"))["rows"]
        images = {row["path"] for row in rows if row["path"].startswith(f"{base}/data/train/") and row["read_bytes"]}
    left = _SAMPLES - _KEPT * _BATCH
    return [
        Figure(
            "CheckFreq: samples that a resumed job reads beyond those that were left",
            abs(len(images) - left),
            0,
            detail=f"{len(images)} of {_SAMPLES} files read, {left} left at step {_KEPT} of {_SAMPLES // _BATCH}; by its trace",
        )
    ]


def _run(module: str, *arguments: object) -> str:
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _going_on() -> list[Figure]:
    """Kill a job at steps that a seed chooses, and let the next one go on until it is where that was."""
    draw, shares, lost, beyond = random.Random(1), [], [], 0
    with tempfile.TemporaryDirectory(prefix="iotwin-perf-", dir=os.environ.get("TMPDIR")) as name:
        store = Path(name) / "store"
        for _ in range(_KILLS):
            shutil.rmtree(store, ignore_errors=True)
            reached = _killed_at(store, draw.randrange(2 * _INTERVAL, 6 * _INTERVAL))
            told = json.loads(_run("tests.perf.perf_checkfreq_recovery", store, reached).splitlines()[-1])
            lost.append(reached - told["step"])
            shares.append((told["restore_s"] + told["redo_s"]) / (told["load_s"] + 2 * _INTERVAL * told["step_s"]))
            beyond += told["reads"] - lost[-1] * _BATCH
    detail = (
        f"median {statistics.median(shares):.2f}; {', '.join(map(str, lost))} steps lost, a checkpoint every {_INTERVAL}; vgg16"
    )
    return [
        Figure(
            f"CheckFreq: restoring and going forward again after kill -9, over loading and 2 intervals: most of {_KILLS}",
            max(shares),
            1,
            detail=detail,
        ),
        Figure(
            "... samples that these jobs read beyond those of the lost steps", beyond, 0, detail="by their data set's counter"
        ),
    ]


def _killed_at(store: Path, step: int) -> int:
    """Start a job, kill it when it reports `step`, and return the last step that it reported."""
    command = [sys.executable, "-m", "tests.perf.perf_checkfreq_recovery", str(store)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        assert job.stdout is not None
        reached = next(int(line) for line in job.stdout if int(line) >= step)
        job.kill()
        return max([reached, *map(int, job.stdout)])


class _Samples:
    """A data set of numbers that counts the numbers read."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 1000 * _BATCH

    def __getitem__(self, index: int) -> int:
        self.reads += 1
        return index


def _job(store: Path, reached: int | None) -> None:
    """Train and print every step; or restore, train until `reached`, and print what that took as JSON."""
    torch.set_num_threads(1)
    training, samples = Training("vgg16"), _Samples()
    with CFManager(store, CFCheckpoint(model=training.network, optimizer=training.optimizer)) as manager:
        batches = DataLoader(samples, batch_sampler=CFBatches(len(samples), _BATCH, seed=1))  # type: ignore[arg-type]
        iterator = CFIterator(batches, bs=_BATCH, dali=False, chk_freq=_INTERVAL, cf_manager=manager)
        begin = time.perf_counter()
        if (left := manager.restore()) is not None:
            iterator.load_state_dict(left)
        restored = time.perf_counter()
        first = iterator.state_dict()["steps_so_far"]
        steps = enumerate(iterator, first + 1) if reached is None or first < reached else ()  # killed behind a checkpoint
        for step, _ in steps:
            training.step(step)
            if reached is None:
                print(step, flush=True)
            elif step >= reached:
                break
        if reached is None:
            return
        redo_s, reads = time.perf_counter() - restored, samples.reads
        manager.wait()
        told = {"step": first, "restore_s": restored - begin, "redo_s": redo_s, "reads": reads}
        print(json.dumps(told | {"load_s": _load_s(store), "step_s": _step_s(training)}))


def _load_s(store: Path) -> float:
    """Return the seconds that reading a checkpoint of that size takes."""
    begin = time.perf_counter()
    found = newest(store, note)
    assert found is not None
    read_rank(found, 0)
    return time.perf_counter() - begin


def _step_s(training: Training) -> float:
    """Return the seconds of a step without checkpoints."""
    seconds = []
    for number in range(32):
        begin = time.perf_counter()
        training.step(number)
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)


if __name__ == "__main__":
    _job(Path(sys.argv[1]), int(sys.argv[2]) if sys.argv[2:] else None)
