"""What every loader has: a fetcher that reads batches, what is known of a batch that was read, and the protocol."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, Self

from benchmark.emulator.data.dataset import SampleSet
from benchmark.emulator.data.order import Batch
from common.numbers.draws import DrawnTime
from common.numbers.sleeper import Sleeper

_RANK = 0  # of the job; the draws are keyed by it


class Fetched(NamedTuple):
    """One batch as its reader saw it."""

    samples: int
    size_bytes: int
    read_ns: int
    preprocess_ns: int
    sample_ns: tuple[tuple[int, int], ...] = ()  # read_ns and preprocess_ns of each sample, if asked for
    copy_ns: int | None = None  # into page-locked memory, if it was copied there
    start_ns: int = 0  # when reading it began (CLOCK_MONOTONIC); 0 where its reader cannot tell


class Fetcher:
    """Reads one batch, sample after sample, and spends the preprocessing time of each."""

    def __init__(self, samples: SampleSet, preprocess: DrawnTime, instrument: bool = False) -> None:
        self._samples, self._preprocess, self._instrument = samples, preprocess, instrument
        self._sleeper = Sleeper()
        self.stopped = False  # set by another thread: no further sample is wanted

    def clone(self) -> Self:
        """Return a fetcher of the same samples for another thread: what readers keep and what sleepers carry is not shared."""
        samples = replace(self._samples, reader=copy.deepcopy(self._samples.reader))
        return type(self)(samples, copy.copy(self._preprocess), self._instrument)

    def fetch(self, epoch: int, batch: Batch) -> Fetched:
        """Read the samples of `batch`, consecutive ones of a file in one read; IotwinError names the file that cannot be read."""
        if self._samples.in_runs:
            return self._fetch_runs(epoch, batch)
        size_bytes = read_ns = preprocess_ns = 0
        sample_ns: list[tuple[int, int]] = []
        start_ns = time.monotonic_ns()
        for index in batch.tolist():
            if self.stopped:
                break
            begin_ns = time.monotonic_ns()
            size_bytes += self._samples.read(index)
            loaded_ns = time.monotonic_ns() - begin_ns
            seconds = self._preprocess.seconds(_RANK, epoch, index)
            self._sleeper.sleep(seconds)
            read_ns, preprocess_ns = read_ns + loaded_ns, preprocess_ns + int(seconds * 1e9)
            if self._instrument:
                sample_ns.append((loaded_ns, int(seconds * 1e9)))
        return Fetched(len(batch), size_bytes, read_ns, preprocess_ns, tuple(sample_ns), start_ns=start_ns)

    def _fetch_runs(self, epoch: int, batch: Batch) -> Fetched:
        """Read a batch of records by runs; preprocessing time is drawn once for all of them: such jobs work on whole batches."""
        begin_ns = time.monotonic_ns()
        size_bytes = self._samples.read_runs(batch)
        read_ns = time.monotonic_ns() - begin_ns
        seconds = self._preprocess.seconds(_RANK, epoch, int(batch[0])) * len(batch) if len(batch) else 0.0
        self._sleeper.sleep(seconds)
        return Fetched(len(batch), size_bytes, read_ns, int(seconds * 1e9), start_ns=begin_ns)


class Loader(Protocol):
    """Delivers the batches of an epoch in order; a context that leaves no process behind."""

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch; IotwinError when reading fails or a worker dies."""

    def __enter__(self) -> Self:
        """Return the loader."""

    def __exit__(self, *exception: object) -> None:
        """End its processes."""
