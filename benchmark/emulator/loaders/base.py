"""The interface of loaders, the fetcher that reads batches for them, and the loaders that read in the calling process."""

import copy
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol, Self

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.data.dataset import SampleSet
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.readers.records import Raw
from iotwin.benchmark.emulator.threads import TaskThreads
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
    ready_ns: int = 0  # when the rank had the batch, so that its wait for data ended; 0: unknown

    def read_on_demand(self, asked_ns: int) -> Self:
        """Return this batch with `ready_ns` set, for a process that requested it at `asked_ns` and then read it itself.

        Only the time of reads and preprocessing counts as waiting. The rest is the emulator's own work. It shortens the next
        sleep.
        """
        return self._replace(ready_ns=asked_ns + self.read_ns + self.preprocess_ns)


@dataclass
class Fetcher:
    """Reads a batch sample by sample, and sleeps for the preprocessing time of each sample."""

    samples: SampleSet
    preprocess: DrawnTime | None  # preprocessing time of each sample; None if there is none
    instrument: bool = False  # record the parts of each sample
    stopped: bool = False  # another thread sets it to stop before the next sample

    def clone(self) -> Self:
        """Return a fetcher of the same samples for another thread, with a separate reader and sleeper, which have state."""
        samples = replace(self.samples, reader=copy.deepcopy(self.samples.reader))
        return replace(self, samples=samples, preprocess=copy.copy(self.preprocess))

    @cached_property
    def _sleeper(self) -> Sleeper:
        return waits.new_sleeper()

    def fetch(self, epoch: int, batch: Batch) -> Fetched:
        """Read the samples of `batch`, by one read for consecutive records of a file if the reader can do so.

        Raises IotwinError, which names the file, if a file cannot be read.
        """
        if isinstance(self.samples.reader, Raw):
            return self._fetch_runs(epoch, batch)
        size_bytes = read_ns = preprocess_ns = 0
        sample_ns: list[tuple[int, int]] = []
        start_ns = waits.now_ns()
        for index in batch.tolist():
            if self.stopped:
                break
            begin_ns = waits.now_ns()
            size_bytes += self.samples.read(index)
            loaded_ns = waits.now_ns() - begin_ns
            spent_ns = self._preprocess(epoch, index)
            read_ns, preprocess_ns = read_ns + loaded_ns, preprocess_ns + spent_ns
            if self.instrument:
                sample_ns.append((loaded_ns, spent_ns))
        return Fetched(len(batch), size_bytes, read_ns, preprocess_ns, tuple(sample_ns), start_ns=start_ns)

    def _fetch_runs(self, epoch: int, batch: Batch) -> Fetched:
        """Read a batch by runs of consecutive records. As these jobs process whole batches, one time is drawn."""
        begin_ns = waits.now_ns()
        size_bytes = self.samples.read_runs(batch)
        read_ns = waits.now_ns() - begin_ns
        preprocess_ns = self._preprocess(epoch, int(batch[0]), len(batch)) if len(batch) else 0
        return Fetched(len(batch), size_bytes, read_ns, preprocess_ns, start_ns=begin_ns)

    def _preprocess(self, epoch: int, index: int, samples: int = 1) -> int:
        """Sleep for the time of preprocessing `samples` samples, drawn for the one at `index`, and return its nanoseconds."""
        if self.preprocess is None:
            return 0
        seconds = self.preprocess.seconds(_RANK, epoch, index) * samples
        self._sleeper.sleep(seconds)
        return int(seconds * 1e9)


class Loader(AbstractContextManager["Loader"], Protocol):
    """Delivers the batches of an epoch in order. As a context manager, it ends all its processes on exit."""

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield the result of each batch's reads, in order. Raises IotwinError if a read fails or a worker dies."""

    def __exit__(self, *exception: object) -> None:
        """End the loader's processes and threads; by default there are none."""
        return


@dataclass
class MainLoader(Loader):
    """Reads each batch in the calling process, on demand (num_workers=0)."""

    fetcher: Fetcher

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        asked_ns = waits.now_ns()
        for batch in batches:
            yield self.fetcher.fetch(epoch, batch).read_on_demand(asked_ns)
            asked_ns = waits.now_ns()


class ThreadLoader(Loader):
    """Reads in threads of the calling process, with the same assignment of batches and prefetch as worker processes."""

    def __init__(self, fetcher: Fetcher, threads: int, prefetch: int) -> None:
        self._fetchers = [fetcher.clone() for _ in range(threads)]
        self._prefetch = prefetch
        # Thread k of W reads the batches k, k + W, k + 2W, ... in order.
        self._threads = [TaskThreads(1, f"loader{index}") for index in range(threads)]

    def __exit__(self, *exception: object) -> None:
        """End the threads, each after the sample that it is reading."""
        for fetcher in self._fetchers:
            fetcher.stopped = True
        for thread in self._threads:
            thread.end()

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        count = len(self._threads)
        under_way: deque[Future[Fetched]] = deque()
        sent = 0
        for taken in range(len(batches) + 1):
            fetched = waits.result(under_way.popleft()) if taken else None
            while sent < min(len(batches), taken + self._prefetch * count):
                worker = sent % count
                under_way.append(self._threads[worker].submit(self._fetchers[worker].fetch, epoch, batches[sent]))
                sent += 1
            if fetched is not None:
                yield fetched
