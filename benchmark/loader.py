"""Loader processes that read as PyTorch's DataLoader does: the same processes, the same share of batches, the same prefetch.

What DataLoader does, and this does too: worker k of W gets the batches k, k + W, k + 2W, ...; each worker starts with
`prefetch` batches; whenever the main process takes a batch, the next one goes out, before the main process computes; batches
are taken in order. The samples are not handed over: copying them is no I/O, and its time is part of the preprocessing time.
"""

import contextlib
import copy
import multiprocessing
import os
import select
import signal
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from typing import NamedTuple, Protocol, Self

from benchmark.dataset import Samples
from benchmark.draws import DrawnTime
from benchmark.order import Batch
from benchmark.process import become_loader
from benchmark.sleeper import Sleeper
from tracing_tools.trace.errors import IotwinError

_RANK = 0  # of the job; the draws are keyed by it
_fork = multiprocessing.get_context("fork")
_EXIT_PATIENCE_S = 5.0


class Fetched(NamedTuple):
    """One batch as its reader saw it."""

    samples: int
    size_bytes: int
    read_ns: int
    preprocess_ns: int
    sample_ns: tuple[tuple[int, int], ...] = ()  # read_ns and preprocess_ns of each sample, if asked for
    copy_ns: int | None = None  # into page-locked memory, if it was copied there


class Fetcher:
    """Reads one batch, sample after sample, and spends the preprocessing time of each."""

    def __init__(self, samples: Samples, preprocess: DrawnTime, instrument: bool = False) -> None:
        self._samples, self._preprocess, self._instrument = samples, preprocess, instrument
        self._sleeper = Sleeper()
        self.stopped = False  # set by another thread: no further sample is wanted

    def clone(self) -> Self:
        """Return a fetcher of the same samples for another thread: what readers keep and what sleepers carry is not shared."""
        samples = replace(self._samples, reader=copy.deepcopy(self._samples.reader))
        return type(self)(samples, copy.copy(self._preprocess), self._instrument)

    def fetch(self, epoch: int, batch: Batch) -> Fetched:
        """Read the samples of `batch`, in as few reads as their places allow; IotwinError names the file that cannot be read."""
        if self._samples.in_runs:
            return self._fetch_runs(epoch, batch)
        size_bytes = read_ns = preprocess_ns = 0
        sample_ns: list[tuple[int, int]] = []
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
        return Fetched(len(batch), size_bytes, read_ns, preprocess_ns, tuple(sample_ns))

    def _fetch_runs(self, epoch: int, batch: Batch) -> Fetched:
        """Read a batch of records by runs; preprocessing time is drawn once for all of them: such jobs work on whole batches."""
        begin_ns = time.monotonic_ns()
        size_bytes = self._samples.read_runs(batch)
        read_ns = time.monotonic_ns() - begin_ns
        seconds = self._preprocess.seconds(_RANK, epoch, int(batch[0])) * len(batch) if len(batch) else 0.0
        self._sleeper.sleep(seconds)
        return Fetched(len(batch), size_bytes, read_ns, int(seconds * 1e9))


class Loader(Protocol):
    """Delivers the batches of an epoch in order; a context that leaves no process behind."""

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch; IotwinError when reading fails or a worker dies."""

    def __enter__(self) -> Self:
        """Return the loader."""

    def __exit__(self, *exception: object) -> None:
        """End its processes."""


def make_loader(fetcher: Fetcher, workers: int, prefetch: int, persistent: bool) -> Loader:
    """Return a loader with `workers` processes, each with `prefetch` batches in flight; with none, the caller's process reads."""
    return WorkerLoader(fetcher, workers, prefetch, persistent) if workers else MainLoader(fetcher)


class MainLoader:
    """Reads in the calling process, when the batch is asked for (num_workers=0)."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch; IotwinError when reading fails."""
        for batch in batches:
            yield self._fetcher.fetch(epoch, batch)

    def __enter__(self) -> Self:
        """Return the loader; it holds nothing."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Do nothing: there is no process to end."""


class ThreadLoader:
    """Reads in threads of the calling process, with the shares and the prefetch of worker processes."""

    def __init__(self, fetcher: Fetcher, threads: int, prefetch: int) -> None:
        self._fetchers = [fetcher.clone() for _ in range(threads)]
        self._prefetch = prefetch
        # One executor a thread, so that thread k reads the batches k, k + W, k + 2W, ... in order.
        self._threads = [ThreadPoolExecutor(1, f"loader{number}") for number in range(threads)]

    def __enter__(self) -> Self:
        """Return the loader; threads start with the first epoch."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the threads, after the sample each is reading."""
        for fetcher in self._fetchers:
            fetcher.stopped = True
        for thread in self._threads:
            thread.shutdown(cancel_futures=True)

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails."""
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


class _Worker:
    """One forked process and the two pipes to it."""

    def __init__(self, number: int, fetcher: Fetcher) -> None:
        inbox, self.tasks = _fork.Pipe(duplex=False)
        self.results, outbox = _fork.Pipe(duplex=False)
        self.number = number
        self.process: ForkProcess = _fork.Process(target=_serve, args=(number, os.getpid(), fetcher, inbox, outbox), daemon=True)
        # A signal between the fork and the worker's own handlers would run the main process's handler in the worker.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        # Held by the worker alone, so that its death is the end of the stream.
        inbox.close()
        outbox.close()

    def finish(self) -> None:
        """Tell the worker to end and wait until it has."""
        with contextlib.suppress(BrokenPipeError):  # it has ended before, with nothing left to deliver
            self.tasks.send(None)
        self.process.join(_EXIT_PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """End the worker at once, if it still runs, and close the pipes."""
        if self.process.is_alive():
            self.process.kill()
        # A worker stuck in the kernel on dead storage cannot be waited for; it ends when the kernel lets go of it.
        self.process.join(_EXIT_PATIENCE_S)
        self.tasks.close()
        self.results.close()


def _serve(number: int, parent_pid: int, fetcher: Fetcher, inbox: Connection, outbox: Connection) -> None:
    """Be a worker: fetch the batches that come in, until told to end or the parent is gone."""
    become_loader(number, parent_pid)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        while (task := inbox.recv()) is not None:
            epoch, batch_number, batch = task
            try:
                outbox.send((batch_number, fetcher.fetch(epoch, batch)))
            except IotwinError as error:
                outbox.send((batch_number, str(error)))
    except (EOFError, BrokenPipeError):
        return  # the main process is gone or has given up, and says why itself


class WorkerLoader:
    """Reads in forked processes: fresh ones for each epoch, or the same ones for all when `persistent`."""

    def __init__(self, fetcher: Fetcher, workers: int, prefetch: int, persistent: bool) -> None:
        self._fetcher, self._count, self._prefetch, self._persistent = fetcher, workers, prefetch, persistent
        self._workers: list[_Worker] = []
        self._by_descriptor: dict[int, _Worker] = {}

    def __enter__(self) -> Self:
        """Return the loader; workers start with the first epoch."""
        return self

    def __exit__(self, *exception: object) -> None:
        """End the workers: at once, as nothing they could still read is wanted."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield what was read for each batch, in order; IotwinError when reading fails or a worker dies."""
        self._start()
        arrived: dict[int, Fetched] = {}
        sent = 0
        for taken in range(len(batches) + 1):
            while sent < min(len(batches), taken + self._prefetch * self._count):
                self._send(epoch, sent, batches[sent])
                sent += 1
            if taken:
                yield arrived.pop(taken - 1)
            while taken < len(batches) and taken not in arrived:
                self._receive(epoch, arrived)
        if not self._persistent:
            self._finish()

    def _start(self) -> None:
        """Fork the workers that an epoch needs and that are not there."""
        while len(self._workers) < self._count:
            self._workers.append(_Worker(len(self._workers), self._fetcher))
        # Registered once: multiprocessing's own wait() sets up its selector anew for every batch, at several times the cost.
        self._by_descriptor = {worker.results.fileno(): worker for worker in self._workers}
        self._poller = select.poll()
        for descriptor in self._by_descriptor:
            self._poller.register(descriptor, select.POLLIN)

    def _send(self, epoch: int, number: int, batch: Batch) -> None:
        worker = self._workers[number % self._count]
        try:
            worker.tasks.send((epoch, number, batch))
        except BrokenPipeError:
            raise _died(worker, epoch) from None

    def _receive(self, epoch: int, arrived: dict[int, Fetched]) -> None:
        """Wait for at least one batch, whichever worker has it."""
        for descriptor, _ in self._poller.poll():
            worker = self._by_descriptor[descriptor]
            try:
                number, outcome = worker.results.recv()
            except EOFError:
                raise _died(worker, epoch) from None
            if isinstance(outcome, str):
                raise IotwinError(outcome)
            arrived[number] = outcome

    def _finish(self) -> None:
        workers, self._workers = self._workers, []
        try:
            for worker in workers:
                worker.finish()
        except BaseException:
            for worker in workers:
                worker.kill()
            raise


def _died(worker: _Worker, epoch: int) -> IotwinError:
    worker.process.join(_EXIT_PATIENCE_S)
    status = worker.process.exitcode
    how = f"killed by {signal.Signals(-status).name}" if status is not None and status < 0 else f"ended with status {status}"
    return IotwinError(
        f"loader worker {worker.number} (process {worker.process.pid}) was {how} in epoch {epoch}; "
        "look for a lack of memory in the kernel log, then run again"
    )
