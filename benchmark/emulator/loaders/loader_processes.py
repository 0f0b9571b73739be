"""Read in loader processes as PyTorch's DataLoader does: with the same processes, assignment of batches and prefetch.

Like DataLoader,

* worker k of W reads the batches k, k + W, k + 2W, ...;
* each worker starts with `prefetch` batches;
* when the main process receives a batch, it requests the next one before it computes;
* the main process waits for each batch separately, and delivers the batches in order.

Unlike DataLoader, the workers send no samples. Copying them is not I/O, and its time is part of the preprocessing time.
"""

import contextlib
import multiprocessing
import os
import select
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.data.order import Batch
from iotwin.benchmark.emulator.loaders.base import Fetched, Fetcher, Loader
from iotwin.common.errors import IotwinError
from iotwin.common.processes import children

_fork = multiprocessing.get_context("fork")
_EXIT_PATIENCE_S = 5.0


class _Worker:
    """A forked process and the two pipes to it. The process adds a token to `arrivals` for each batch that it returns."""

    def __init__(self, index: int, fetcher: Fetcher, arrivals: waits.Tokens) -> None:
        inbox, self.tasks = _fork.Pipe(duplex=False)
        self.results, outbox = _fork.Pipe(duplex=False)
        self.index, self.slot, self._requests = index, waits.reserve(), waits.Tokens()
        given = (index, os.getpid(), fetcher, inbox, outbox, self.slot, self._requests, arrivals)
        self.process: ForkProcess = _fork.Process(target=_serve, args=given, daemon=True)
        children.start(self.process)
        # Only the worker holds these ends, so that its death closes the pipes.
        inbox.close()
        outbox.close()

    def send(self, task: tuple[int, int, Batch] | None) -> None:
        """Send (epoch, index of the batch, batch), or None to end the worker. Raises BrokenPipeError if it has ended."""
        self._requests.give()  # before the message: sending a large message blocks until the worker reads it
        self.tasks.send(task)

    def finish(self) -> None:
        """Request the worker's end, and wait until the worker has ended."""
        with contextlib.suppress(BrokenPipeError):  # the worker has ended already, with no batch left to deliver
            self.send(None)
        waits.wait_for_end(self.slot)
        self.process.join(_EXIT_PATIENCE_S)
        self.kill()

    def kill(self) -> None:
        """Kill the worker if it still runs, and close the pipes."""
        children.end(self.process, 0.0, _EXIT_PATIENCE_S)
        waits.release(self.slot)
        self.slot = None
        self.tasks.close()
        self.results.close()


def _serve(index: int, parent_pid: int, fetcher: Fetcher, inbox: Connection, outbox: Connection, slot: int | None,
           requests: waits.Tokens, arrivals: waits.Tokens) -> None:  # fmt: skip
    """Run a worker: fetch each batch from `inbox`, until None arrives or the parent has ended."""
    children.become_child(f"iotwin-loader{index}", parent_pid)
    children.ready()
    waits.enter(slot)
    try:
        while True:
            requests.take()
            if (task := inbox.recv()) is None:
                return
            epoch, batch_index, batch = task
            outcome: Fetched | str
            try:
                outcome = fetcher.fetch(epoch, batch)
            except IotwinError as error:
                outcome = str(error)
            arrivals.give()
            outbox.send((batch_index, outcome))
    except (EOFError, BrokenPipeError):
        return  # the main process died, or ended the epoch after an error that it reports
    finally:
        waits.leave()


class WorkerLoader(Loader):
    """Reads in forked processes: new processes in each epoch, or the same ones in all epochs if `persistent`."""

    def __init__(self, fetcher: Fetcher, workers: int, prefetch: int, persistent: bool) -> None:
        self._fetcher, self._count, self._prefetch, self._persistent = fetcher, workers, prefetch, persistent
        self._workers: list[_Worker] = []
        self._arrivals = waits.Tokens()
        self._by_descriptor: dict[int, _Worker] = {}
        self._due = 0  # number of batches that were requested and have not arrived

    def __exit__(self, *exception: object) -> None:
        """Kill the workers, since the batches that they still read are not needed."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()

    def epoch(self, epoch: int, batches: Sequence[Batch]) -> Iterator[Fetched]:
        """Yield the result of each batch's reads, in order. Raises IotwinError if a read fails or a worker dies.

        If the previous epoch was abandoned, persistent workers first finish its pending batches.
        """
        while self._due:
            self._receive(epoch, 0, {})
        if not self._persistent:
            self._finish()
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
                self._receive(epoch, taken, arrived)
        if not self._persistent:
            self._finish()

    def _start(self) -> None:
        """Fork the workers, unless they run already."""
        while len(self._workers) < self._count:
            self._workers.append(_Worker(len(self._workers), self._fetcher, self._arrivals))
        # Registered once, since multiprocessing's wait() creates a selector for every batch, at several times the cost.
        self._by_descriptor = {worker.results.fileno(): worker for worker in self._workers}
        self._poller = select.poll()
        for descriptor in self._by_descriptor:
            self._poller.register(descriptor, select.POLLIN)

    def _send(self, epoch: int, index: int, batch: Batch) -> None:
        worker = self._workers[index % self._count]
        try:
            worker.send((epoch, index, batch))
            self._due += 1
        except BrokenPipeError:
            raise _died(worker, epoch) from None

    def _receive(self, epoch: int, wanted: int, arrived: dict[int, Fetched]) -> None:
        """Wait for one batch and add it to `arrived`: the batch `wanted` if it has arrived, else another.

        One call receives one batch, even if several have arrived, because torch's main process waits for each batch separately.
        """
        self._arrivals.take(gives_up=lambda: any(waits.has_ended(each.slot) for each in self._workers))
        ready = [self._by_descriptor[descriptor] for descriptor, _ in self._poller.poll()]
        ready_ns = waits.now_ns()
        worker = self._workers[wanted % self._count]
        if worker not in ready:
            worker = ready[0]
        try:
            index, outcome = worker.results.recv()
        except EOFError:
            raise _died(worker, epoch) from None
        if isinstance(outcome, str):
            raise IotwinError(outcome)
        self._due -= 1
        arrived[index] = outcome._replace(ready_ns=ready_ns)

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
        f"loader worker {worker.index} (process {worker.process.pid}) was {how} in epoch {epoch}; "
        "look for a lack of memory in the kernel log, then run again"
    )
