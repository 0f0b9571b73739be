"""The interface of loaders, the fetcher that reads batches for them, and the loader that reads in the calling process."""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol, Self

from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.sleeper import Sleeper

_RANK = 0  # key of the draws: all ranks draw the same time for a sample


class Fetched(NamedTuple):
    """The result of reading one batch."""

    samples: int
    size_bytes: int
    read_ns: int
    preprocess_ns: int
    sample_ns: tuple[tuple[int, int], ...] = ()  # read_ns and preprocess_ns of each sample, if instrumented
    copy_ns: int | None = None  # time of the copy into page-locked memory; None: not copied
    start_ns: int = 0  # start of the first read (CLOCK_MONOTONIC); 0: unknown


class Fetcher:
    """Reads a batch sample by sample, and sleeps for the preprocessing time of each sample."""

    def __init__(self, samples: SampleSet, preprocess: DrawnTime, instrument: bool = False) -> None:
        self._samples, self._preprocess, self._instrument = samples, preprocess, instrument
        self._sleeper = Sleeper()
        self.stopped = False  # another thread sets it to stop before the next sample

    def clone(self) -> Self:
        """Return a fetcher of the same samples for another thread. It has a separate reader and sleeper, as these have state."""
        samples = replace(self._samples, reader=copy.deepcopy(self._samples.reader))
        return type(self)(samples, copy.copy(self._preprocess), self._instrument)

    def fetch(self, epoch: int, batch: Batch) -> Fetched:
        """Read the samples of `batch`, by one read for consecutive records of a file if the reader can do so.

        Raises IotwinError, which names the file, if a file cannot be read.
        """
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
        """Read a batch by runs of consecutive records. One preprocessing time is drawn, as these jobs process whole batches."""
        begin_ns = time.monotonic_ns()
        size_bytes = self._samples.read_runs(batch)
        read_ns = time.monotonic_ns() - begin_ns
        seconds = self._preprocess.seconds(_RANK, epoch, int(batch[0])) * len(batch) if len(batch) else 0.0
        self._sleeper.sleep(seconds)
        return Fetched(len(batch), size_bytes, read_ns, int(seconds * 1e9), start_ns=begin_ns)


class Loader(Protocol):
    """Delivers the batches of an epoch in order. As a context manager, it ends all its processes on exit."""

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield the result of each batch's reads, in order. Raises IotwinError if a read fails or a worker dies."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """End the loader's processes and threads; by default there are none."""
        return


class MainLoader(Loader):
    """Reads each batch in the calling process, on demand (num_workers=0)."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        for batch in batches:
            yield self._fetcher.fetch(epoch, batch)
