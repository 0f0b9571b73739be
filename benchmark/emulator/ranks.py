"""The ranks of a run: processes that each stand for one accelerator and meet after every step, on one machine or under MPI.

On one machine they are forked from the process that was started, which gathers what they measured. Whatever ends one of them ends
all: no rank waits for one that is gone.
"""

import contextlib
import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

import numpy as np

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.processes import children
from iotwin.common.progress import set_quiet

_T = TypeVar("_T")
_fork = multiprocessing.get_context("fork")
_EXIT_PATIENCE_S = 10.0  # for a rank to clean up

# Flags that ranks exchange where they meet; a flag that one rank sets counts for all.
STOP, CHECKPOINT = 1, 2


@dataclass(frozen=True)
class Rank:
    """One of `count` ranks. Their indices ascend node by node, so that neighbours are on one node.

    `exchange(flags, due_ns)` waits for all ranks. It returns the flags that any rank set, and the latest `due_ns`.
    A rank's `due_ns` (CLOCK_MONOTONIC) is when it would have arrived without delays by the emulator itself.

    `arrive()` is for background threads. It announces this rank, and returns a function that returns True if all have arrived.
    """

    index: int = 0
    count: int = 1
    node: int = 0
    nodes: int = 1
    exchange: Callable[[int, int], tuple[int, int]] = lambda flags, due_ns: (flags, due_ns)
    arrive: Callable[[], Callable[[], bool]] = lambda: lambda: True

    def meet(self, flags: int = 0) -> int:
        """Wait for all ranks and return the flags that any of them set."""
        return self.exchange(flags, 0)[0]


class _Meeting:
    """Where ranks of one machine meet: two counters of the kernel's (eventfd), which rank 0 uses to let the others go.

    Meetings alternate between two release counters and two rows of flags, because the fastest may be at the next meeting
    before the slowest has left this one; it cannot be at the one after that. Nobody spins: ranks that share CPUs would take them
    from one another.
    """

    def __init__(self, count: int) -> None:
        self._count, self._turn = count, 0
        self._arrivals = os.eventfd(0, os.EFD_CLOEXEC)
        self._releases = [os.eventfd(0, os.EFD_CLOEXEC | os.EFD_SEMAPHORE) for _ in range(2)]
        # By turn and rank, the flags and the time it was due; shared by the ranks that are forked.
        self._said = np.frombuffer(mmap.mmap(-1, 2 * count * 2 * 8), np.int64).reshape(2, count, 2)

    def exchange(self, number: int, flags: int, due_ns: int) -> tuple[int, int]:
        """Wait for all ranks as rank `number`; return the flags of all and the latest time."""
        turn, count = self._turn, self._count
        self._turn = 1 - turn
        self._said[turn, number] = flags, due_ns
        if number == 0:
            waited_for = count - 1
            while waited_for:
                waited_for -= os.eventfd_read(self._arrivals)
            os.eventfd_write(self._releases[turn], count - 1)
        else:
            os.eventfd_write(self._arrivals, 1)
            os.eventfd_read(self._releases[turn])
        return int(np.bitwise_or.reduce(self._said[turn, :, 0])), int(self._said[turn, :, 1].max())

    def close(self) -> None:
        """Give the counters back; for the process that made the ranks."""
        for descriptor in (self._arrivals, *self._releases):
            os.close(descriptor)


class _Arrivals:
    """How often each rank of one machine has arrived, in memory that they share."""

    def __init__(self, count: int) -> None:
        self._counts = np.frombuffer(mmap.mmap(-1, count * 8), np.int64)

    def arrive(self, number: int) -> Callable[[], bool]:
        """Announce rank `number` once more; return a function that returns True once all have arrived as often."""
        self._counts[number] += 1
        often = int(self._counts[number])
        return lambda: bool(self._counts.min() >= often)


class _RankProcess(Generic[_T]):
    """One forked rank and the pipe that its result comes by."""

    def __init__(self, rank: Rank, job: Callable[[Rank], _T]) -> None:
        self.index = rank.index
        self.results, outbox = _fork.Pipe(duplex=False)
        self.process: ForkProcess = _fork.Process(target=_serve, args=(rank, os.getpid(), job, outbox))
        children.start(self.process)
        outbox.close()  # held by the rank alone, so that its death is the end of the stream

    def result(self) -> _T:
        """Return what the rank found; IotwinError when it failed or is gone."""
        try:
            failure, value = self.results.recv()
        except EOFError:
            self.process.join(_EXIT_PATIENCE_S)
            raise IotwinError(f"{self._name()} {self._end()}; the run is ended on all ranks") from None
        if failure is not None:
            raise failure(f"rank {self.index}: {value}")
        result: _T = value
        return result

    def _name(self) -> str:
        return f"rank {self.index} (process {self.process.pid})"

    def _end(self) -> str:
        status = self.process.exitcode
        if status is None or status >= 0:
            return f"ended with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def end(self, deadline: float) -> None:
        """Wait for the rank until `deadline` (monotonic seconds), then end it for good."""
        children.end(self.process, deadline - time.monotonic(), _EXIT_PATIENCE_S)
        self.results.close()


def _serve(rank: Rank, parent_pid: int, job: Callable[[Rank], _T], outbox: Connection) -> None:
    """Run the job as a rank and send its result."""
    children.become_child(f"iotwin-rank{rank.index}", parent_pid, cleans_up=True)
    if rank.index:
        set_quiet(True)  # one rank reports the progress of all
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # on SIGTERM, or when the main process is gone
        children.ready()
        try:
            outbox.send((None, job(rank)))
        except IotwinError as error:
            outbox.send((UsageError if isinstance(error, UsageError) else IotwinError, str(error)))
        signal.pthread_sigmask(signal.SIG_BLOCK, children.REQUESTS)  # it ends by itself now


def run_local(count: int, job: Callable[[Rank], _T]) -> list[_T]:
    """Do `job` as `count` ranks on this machine and return their results by number; a single rank is this process.

    Raises IotwinError, naming the rank, when one fails or dies; the others are ended then, as they are by any other exception.
    """
    if count == 1:
        return [job(Rank())]
    meeting, arrivals = _Meeting(count), _Arrivals(count)
    ranks: list[_RankProcess[_T]] = []
    results: dict[int, _T] = {}
    try:
        for index in range(count):
            rank = Rank(index, count, exchange=partial(meeting.exchange, index), arrive=partial(arrivals.arrive, index))
            ranks.append(_RankProcess(rank, job))
        by_pipe = {process.results: process for process in ranks}
        while by_pipe:
            for pipe in wait(list(by_pipe)):
                done = by_pipe.pop(pipe)  # type: ignore[call-overload]
                results[done.index] = done.result()
    except BaseException:
        for process in ranks:
            process.process.terminate()
        raise
    finally:
        deadline = time.monotonic() + _EXIT_PATIENCE_S
        for process in ranks:
            process.end(deadline)
        meeting.close()
    return [results[index] for index in range(count)]
