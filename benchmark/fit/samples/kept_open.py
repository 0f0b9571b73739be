"""How often data files that stay open are opened: by each loader that reads from one, or for all by who starts the loaders."""

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from iotwin.benchmark.fit.look import Job
from iotwin.trace_store import schema

Opened = Literal["by_loaders", "once", "each_pass"]
Shuffled = Literal["", "samples", "files", "batches"]


def opened_by(job: Job, readers: Collection[int]) -> Opened:
    """Return how files come to be open that the processes `readers` keep open: by themselves, or by those who started them."""
    opens = job.calls_on(job.file_ids("dataset"), schema.OPEN_OPS)
    opens = opens[opens["result"] >= 0]
    if opens.empty or opens["pid"].isin(readers).any():
        return "by_loaders"
    return "each_pass" if opens.duplicated(["pid", "file_id"]).any() else "once"


@dataclass(frozen=True)
class Dealt:
    """How the samples of one pass are dealt out to loaders: to ranks in turn, each rank's batches to its workers in turn."""

    steps: int  # of one rank
    batch: int
    ranks: int
    workers: int  # of each rank; its main process is one too
    files: int
    each: int  # samples of a file
    listed: Sequence[set[int]] | None = None  # files of each sample, where these are no equal parts of files
    shuffled: Shuffled = ""

    @property
    def held(self) -> int:
        """Samples of all files."""
        return self.files * self.each if self.listed is None else len(self.listed)


def openings(dealt: Dealt, passes: int, anew: bool) -> float:
    """Return how many pairs of a loader and a file that it meets are expected in so many passes by the same loaders.

    `anew`: each pass has an order of its own; then more meet. A loader that gets n of N samples in random order misses a file of
    k of them with probability C(N - n, k) / C(N, k).
    """
    if not passes:
        return 0.0
    orders = passes if anew else 1
    if dealt.shuffled in ("samples", "batches"):
        return _at_random(dealt, orders)
    pairs = _in_order(dealt) if dealt.listed is None else _of_listed(dealt)
    if dealt.shuffled != "files" or not pairs:
        return float(pairs)
    most = dealt.files * dealt.ranks * dealt.workers
    return most * (1 - (1 - pairs / most) ** orders)


def _at_random(dealt: Dealt, orders: int) -> float:
    held, unit, counts = dealt.held, dealt.batch, Counter({dealt.each: dealt.files})
    if dealt.listed is not None:
        counts = Counter(Counter(file for files in dealt.listed for file in files).values())
    if dealt.shuffled == "batches":
        held, unit, counts = held // dealt.batch, 1, Counter({-(-dealt.each // dealt.batch): dealt.files})
    expected = 0.0
    for worker in range(dealt.workers):
        own = len(range(worker, dealt.steps, dealt.workers)) * unit
        expected += sum(files * (1 - _missed(held, own, count) ** orders) for count, files in counts.items())
    return expected * dealt.ranks


def _missed(held: int, own: int, count: int) -> float:
    """Probability that none of `count` samples is among `own` of the `held`."""
    if held - own < count:
        return 0.0
    whole = math.lgamma(held - own + 1) - math.lgamma(held + 1)
    return math.exp(whole + math.lgamma(held - count + 1) - math.lgamma(held - own - count + 1))


def _in_order(dealt: Dealt) -> int:
    """Pairs where samples come by their files, or each rank has files of its own."""
    rank, file = np.arange(dealt.ranks)[:, None], np.arange(dealt.files + 1)
    if dealt.shuffled == "files":
        first = file * dealt.each - rank * (dealt.held // dealt.ranks)
    else:
        first = -((rank - file * dealt.each) // dealt.ranks)
    first = np.clip(first, 0, dealt.steps * dealt.batch)
    begin, end = first[:, :-1], first[:, 1:]
    batches = (end - 1) // dealt.batch - begin // dealt.batch + 1
    return int(np.where(end > begin, np.minimum(batches, dealt.workers), 0).sum())


def _of_listed(dealt: Dealt) -> int:
    assert dealt.listed is not None  # noqa: S101
    read = dealt.listed[: dealt.steps * dealt.batch * dealt.ranks]
    batches = [(position % dealt.ranks, position // dealt.ranks // dealt.batch) for position in range(len(read))]
    met = zip(batches, read, strict=True)
    return len({(rank, batch % dealt.workers, file) for (rank, batch), files in met for file in files})
