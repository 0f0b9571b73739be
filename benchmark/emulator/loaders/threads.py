"""Load in threads of the main process."""

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher, Loader


class ThreadLoader(Loader):
    """Reads in threads of the calling process, with the same assignment of batches and prefetch as worker processes."""

    def __init__(self, fetcher: Fetcher, threads: int, prefetch: int) -> None:
        self._fetchers = [fetcher.clone() for _ in range(threads)]
        self._prefetch = prefetch
        # An executor for each thread, so that thread k of W reads the batches k, k + W, k + 2W, ... in order.
        self._threads = [ThreadPoolExecutor(1, f"loader{index}") for index in range(threads)]

    def __exit__(self, *exception: object) -> None:
        """End the threads, each after the sample that it is reading."""
        for fetcher in self._fetchers:
            fetcher.stopped = True
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        count = len(self._threads)
        under_way: deque[Future[Fetched]] = deque()
        sent = 0
        for taken in range(len(batches) + 1):
            fetched = under_way.popleft().result() if taken else None
            while sent < min(len(batches), taken + self._prefetch * count):
                worker = sent % count
                under_way.append(self._threads[worker].submit(self._fetchers[worker].fetch, epoch, batches[sent]))
                sent += 1
            if fetched is not None:
                yield fetched
