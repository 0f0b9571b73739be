"""The ranks of a run: processes that each stand for one accelerator, and wait for one another after every step.

On one machine, the main process forks them and gathers their results. If one rank fails or dies, the main process ends all.
Under MPI, mpirun or srun starts several processes, and each is one rank.
"""

import contextlib
import gc
import mmap
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from typing import Generic, TypeVar

import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.processes import children
from iotwin.common.progress import set_quiet
from iotwin.common.ranks import launched_by_mpi

_T = TypeVar("_T")
_fork = multiprocessing.get_context("fork")
_EXIT_PATIENCE_S = 10.0  # time for a rank to clean up

# Flags that ranks exchange when they meet. A flag that one rank sets is set for all.
STOP, CHECKPOINT = 1, 2


@dataclass(frozen=True)
class Rank:
    """One of `count` ranks. Their indices ascend node by node, so that neighbours are on one node.

    `exchange(flags, due_ns)` waits for all ranks, and until the latest `due_ns` of any. A rank's `due_ns` (CLOCK_MONOTONIC) is
    when its step would end without delays by the emulator itself. Returns (the flags that any rank set, the latest `due_ns`, ns
    from this rank's `due_ns` to the latest).

    `send(rows)` sends finished steps to the process that collects the results. If `send` is None, they are part of the rank's
    result instead.

    `arrive()` is for background threads. It announces this rank. The returned function returns True once all ranks have arrived.
    """

    index: int = 0
    count: int = 1
    node: int = 0
    nodes: int = 1
    exchange: Callable[[int, int], tuple[int, int, int]] = lambda flags, due_ns: (flags, due_ns, 0)
    arrive: Callable[[], Callable[[], bool]] = lambda: lambda: True
    send: Callable[[bytes], None] | None = None

    def meet(self, flags: int = 0) -> int:
        """Wait for all ranks and return the flags that any of them set."""
        return self.exchange(flags, 0)[0]


class _Meeting:
    """A barrier for the ranks of one machine: rank 0 counts the arrivals by an eventfd and releases the others by another.

    Barriers alternate between two release counters and two tables of flags, because the fastest rank may reach the next barrier
    before the slowest has left this one. Ranks do not spin, since they may share processors. Only rank 0 sleeps until the ranks
    are due; the release wakes the others, once in each step.
    """

    def __init__(self, count: int) -> None:
        self._count, self._parity = count, 0
        self._arrivals = waits.EventCounter(single=False)
        self._releases = [waits.EventCounter(single=True) for _ in range(2)]
        # (flags, due_ns) by parity of the barrier and by rank, in memory that forked ranks share. Rank 0 writes the result to its
        # own entry, so that only rank 0 reads the entries of all ranks.
        memory = mmap.mmap(-1, 2 * count * 2 * 8)
        self._given, self._cells = np.frombuffer(memory, np.int64).reshape(2, count, 2), memoryview(memory).cast("q")

    def exchange(self, number: int, flags: int, due_ns: int) -> tuple[int, int, int]:
        """Wait for all ranks and until all are due, as rank `number` (see `Rank.exchange`)."""
        parity, count = self._parity, self._count
        self._parity = 1 - parity
        cells, first = self._cells, parity * count * 2
        cells[first + 2 * number], cells[first + 2 * number + 1] = flags, due_ns
        if number == 0:
            given = self._given[parity]
            waits.sleep_until(due_ns)  # meanwhile the others arrive, and none wakes this rank
            self._arrivals.take(count - 1)
            given[0] = np.bitwise_or.reduce(given[:, 0]), given[:, 1].max()
            waits.sleep_until(cells[first + 1])
            self._releases[parity].give(count - 1)
        else:
            self._arrivals.give()
            self._releases[parity].take()
        latest_ns = cells[first + 1]
        return cells[first], latest_ns, latest_ns - due_ns

    def close(self) -> None:
        """Close the counters, in the process that started the ranks."""
        for counter in (self._arrivals, *self._releases):
            counter.close()


class _Arrivals:
    """Counts how often each rank of one machine has arrived, in memory that the ranks share."""

    def __init__(self, count: int) -> None:
        self._counts = np.frombuffer(mmap.mmap(-1, count * 8), np.int64)

    def arrive(self, number: int) -> Callable[[], bool]:
        """Count an arrival of rank `number`. Return a function that returns True once all ranks have arrived as often."""
        self._counts[number] += 1
        waits.changed()
        often = int(self._counts[number])
        return lambda: bool(self._counts.min() >= often)


class _RankProcess(Generic[_T]):
    """A forked rank, and the pipe for its result. If `sends`, the rank also sends steps through the pipe before."""

    def __init__(self, rank: Rank, job: Callable[[Rank], _T], sends: bool) -> None:
        self.index = rank.index
        self.results, outbox = _fork.Pipe(duplex=False)
        if sends:
            rank = replace(rank, send=lambda rows: outbox.send((rows, None, None)))
        self.process: ForkProcess = _fork.Process(target=_serve, args=(rank, os.getpid(), job, outbox))
        children.start(self.process)
        outbox.close()  # only the rank holds this end, so that its death closes the pipe

    def receive(self) -> tuple[bytes | None, _T]:
        """Return steps that the rank has sent, or None and its result. Raises IotwinError if the rank failed or died."""
        try:
            rows, failure, value = self.results.recv()
        except EOFError:
            self.process.join(_EXIT_PATIENCE_S)
            name = f"rank {self.index} (process {self.process.pid})"
            raise IotwinError(f"{name} {self._end()}; the run is ended on all ranks") from None
        if failure is not None:
            raise failure(f"rank {self.index}: {value}")
        return rows, value

    def _end(self) -> str:
        status = self.process.exitcode
        if status is None or status >= 0:
            return f"ended with status {status}"
        return f"was killed by {signal.Signals(-status).name}"

    def end(self, deadline: float) -> None:
        """Wait for the rank to end until `deadline` (monotonic seconds), then kill it."""
        children.end(self.process, deadline - time.monotonic(), _EXIT_PATIENCE_S)
        self.results.close()


def _serve(rank: Rank, parent_pid: int, job: Callable[[Rank], _T], outbox: Connection) -> None:
    """Run `job` as `rank` in a forked process, and send its result or its error."""
    children.become_child(f"iotwin-rank{rank.index}", parent_pid, cleans_up=True)
    if rank.index:
        set_quiet(True)  # one rank reports the progress of all
    with contextlib.suppress(KeyboardInterrupt, BrokenPipeError):  # SIGTERM, or the main process is dead
        children.ready()
        waits.enter(rank.index)
        try:
            outbox.send((None, None, job(rank)))
        except IotwinError as error:
            outbox.send((None, UsageError if isinstance(error, UsageError) else IotwinError, str(error)))
        finally:
            waits.leave()
        signal.pthread_sigmask(signal.SIG_BLOCK, children.REQUESTS)  # the process ends by itself now


def run_local(count: int, job: Callable[[Rank], _T], receive: Callable[[int, bytes], None] | None = None) -> list[_T]:
    """Run `job` as `count` ranks on this machine and return their results in order. A single rank runs in this process.

    `receive` is called in this process with the index of a rank and what it sends (`Rank.send`), while the ranks run.
    Raises IotwinError, which names the rank, if one fails or dies. Any exception ends all ranks.
    """
    if count == 1:
        return [job(Rank(send=receive and partial(receive, 0)))]
    meeting, arrivals = _Meeting(count), _Arrivals(count)
    ranks: list[_RankProcess[_T]] = []
    results: dict[int, _T] = {}
    gc.freeze()  # so that garbage collection in the ranks neither searches nor copies what they share
    try:
        for index in range(count):
            rank = Rank(index, count, exchange=partial(meeting.exchange, index), arrive=partial(arrivals.arrive, index))
            ranks.append(_RankProcess(rank, job, receive is not None))
        by_pipe = {process.results: process for process in ranks}
        while by_pipe:
            for pipe in wait(list(by_pipe)):
                process = by_pipe[pipe]  # type: ignore[index]
                rows, result = process.receive()
                if rows is not None and receive is not None:
                    receive(process.index, rows)
                else:
                    results[process.index] = result
                    del by_pipe[pipe]  # type: ignore[arg-type]
    except BaseException:
        for process in ranks:
            process.process.terminate()
        raise
    finally:
        deadline = time.monotonic() + _EXIT_PATIENCE_S
        for process in ranks:
            process.end(deadline)
        meeting.close()
        gc.unfreeze()
    return [results[index] for index in range(count)]


def under_mpi() -> bool:
    """Return whether mpirun or srun started this process as one of several."""
    return launched_by_mpi().size > 1


def started_as() -> int:
    """Return the index of the rank that mpirun or srun assigned to this process; 0 if neither started it. MPI stays unused."""
    return launched_by_mpi().rank


def run_mpi(job: Callable[[Rank], _T], receive: Callable[[int, bytes], None]) -> list[_T] | None:
    """Run `job` as the rank of this process. Return the results of all ranks in order on rank 0, None on other ranks.

    `receive` is called on rank 0 as by `run_local`. All ranks send steps at the same time, since they meet in each step.
    Raises IotwinError if mpi4py is missing or was built for another MPI than the launcher's, and the exceptions of `job`. The
    command line then ends all ranks (`iotwin.common.ranks.run_as_one`). If a rank dies, mpirun or srun ends the others.
    """
    try:
        from mpi4py import MPI
    except ImportError:
        raise IotwinError("running under mpirun needs mpi4py; install it with: pip install 'iotwin[mpi]'") from None
    world = MPI.COMM_WORLD
    if world.Get_size() == 1:
        raise IotwinError(
            "several processes were started, but each is alone to MPI: mpi4py is made for another MPI than the launcher; "
            "start them by the mpirun of that MPI, or by srun --mpi=pmix"
        )
    node = world.Split_type(MPI.COMM_TYPE_SHARED)
    leader = node.bcast(world.Get_rank(), root=0)
    sorted_ranks = sorted(world.allgather((leader, world.Get_rank())))  # node by node, in whatever order mpirun numbered them
    number = sorted_ranks.index((leader, world.Get_rank()))
    leaders = sorted({leader for leader, _ in sorted_ranks})
    ranks = world.Split(0, number)
    background = ranks.Dup()  # for background threads, whose barriers must not match the barriers of training
    proposed = np.zeros(3, dtype=np.int64)

    def exchange(flags: int, due_ns: int) -> tuple[int, int, int]:
        if len(leaders) > 1:  # clocks of different nodes are not comparable
            waits.sleep_until(due_ns)
        begin_ns = waits.now_ns()
        proposed[:] = flags & STOP, flags & CHECKPOINT, due_ns
        ranks.Allreduce(MPI.IN_PLACE, proposed, op=MPI.MAX)
        agreed, latest_ns = int(proposed[0] | proposed[1]), int(proposed[2])
        if len(leaders) > 1:
            return agreed, due_ns, waits.now_ns() - begin_ns
        waits.sleep_until(latest_ns)
        return agreed, latest_ns, latest_ns - due_ns

    def arrive() -> Callable[[], bool]:
        test: Callable[[], bool] = background.Ibarrier().Test
        return test

    def send(rows: bytes) -> None:
        for index, part in enumerate(ranks.gather(rows, root=0) or ()):
            receive(index, part)

    if number:
        set_quiet(True)
    rank = Rank(number, len(sorted_ranks), leaders.index(leader), len(leaders), exchange, arrive, send)
    results: list[_T] | None = ranks.gather(job(rank), root=0)
    return results
