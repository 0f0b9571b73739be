"""What the made-up jobs share: a loader that makes the calls of torch's DataLoader, data of random bytes, saved state."""

import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from command_line import JobOptions, command_line

_fork = multiprocessing.get_context("fork")


def launch(make: Callable[[JobOptions], Any], main: Callable[[JobOptions, Any], None], *flags: str, **defaults: int) -> None:
    """Run `main` with the data that `make` returns: in this process, or in several ranks that meet after each step."""
    job = command_line(*flags, **defaults)
    data = make(job)
    job.out.mkdir(exist_ok=True)
    if job.ranks == 1:
        main(job, data)
        return
    job.barrier = _fork.Barrier(job.ranks, timeout=60)
    ranks = [_fork.Process(target=_rank, args=(rank, main, job, data)) for rank in range(job.ranks)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    sys.exit(any(process.exitcode for process in ranks))


def _rank(rank: int, main: Callable[[JobOptions, Any], None], job: JobOptions, data: Any) -> None:
    job.rank = rank
    main(job, data)


def make_files(folder: Path, names: Sequence[str], sizes: Sequence[int]) -> list[Path]:
    """Write files of random bytes, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(7)
    for name, size in zip(names, sizes, strict=True):
        if not (folder / name).exists():
            (folder / name).write_bytes(rng.bytes(size))
    return [folder / name for name in names]


def make_images(paths: Sequence[Path], shape: tuple[int, ...]) -> None:
    """Write images of random pixels, unless they are there."""
    from PIL import Image

    rng = np.random.default_rng(7)
    for path in (path for path in paths if not path.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)


def save(job: JobOptions, name: str, size_bytes: int) -> None:
    """Write a checkpoint under a temporary name, fsync it and rename it; the first rank does so for all."""
    if job.rank:
        return
    temporary = job.out / f"{name}.tmp"
    with temporary.open("wb", buffering=0) as file:
        for begin in range(0, size_bytes, 1 << 20):
            file.write(bytes(min(1 << 20, size_bytes - begin)))
        os.fsync(file.fileno())
    temporary.rename(job.out / name)


def batches(job: JobOptions, samples: Sequence[Any], size: int) -> list[list[Any]]:
    """Cut samples into batches, of which each of N ranks takes every N-th; the last may be short."""
    every = [list(samples[i : i + size]) for i in range(0, len(samples), size)]
    return every[: len(every) // job.ranks * job.ranks][job.rank :: job.ranks]


class Loader:
    """Worker processes with a queue of indices each and one queue of results, two batches ahead each, as torch's DataLoader.

    `fetch` makes what a batch's indices ask for; its result goes through the pipe.
    """

    def __init__(self, job: JobOptions, fetch: Callable[[list[int]], object]) -> None:
        self._job, self._results = job, _fork.Queue()
        self._asked = [_fork.Queue() for _ in range(job.workers)]
        self._workers = [_fork.Process(target=self._work, args=(fetch, queue), daemon=True) for queue in self._asked]
        for worker in self._workers:
            worker.start()

    def _work(self, fetch, queue) -> None:
        while (asked := queue.get()) is not None:
            number, indices = asked
            self._results.put((number, fetch(indices)))

    def epoch(self, wanted: Sequence[list[int]], compute_s: float) -> Iterator[int]:
        """Take the batches in order and compute for each."""
        ahead, asked, early = 2 * len(self._asked), 0, {}
        for number in range(len(wanted)):
            while asked < min(number + ahead, len(wanted)):
                self._asked[asked % len(self._asked)].put((asked, wanted[asked]))
                asked += 1
            while number not in early:
                place, result = self._results.get(timeout=60)
                early[place] = result
            early.pop(number)
            time.sleep(compute_s)
            self._job.meet()
            yield number

    def close(self) -> None:
        """End the workers."""
        for queue in self._asked:
            queue.put(None)
        for worker in self._workers:
            worker.join()


def read_file(path: Path) -> bytes:
    """Read a whole file as image libraries do, a buffer at a time; return a digest that goes through the pipe."""
    with path.open("rb", buffering=0) as file:
        while part := file.read(1 << 16):
            pass
    time.sleep(0.001)
    return bytes(part) + bytes(2000)
