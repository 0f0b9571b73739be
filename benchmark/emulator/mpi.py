"""The same ranks under MPI: when mpirun or srun started this process beside others, each of them is one rank."""

import socket
import sys
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np

from benchmark.emulator.ranks import CHECKPOINT, STOP, Rank
from common.errors import IotwinError
from common.progress import set_quiet
from common.ranks import launched_by_mpi

_T = TypeVar("_T")
_FIRST_SPEAKS_S = 3.0  # a rank's head start over the next one, where all fail of the same
_LONGEST_SILENCE_S = 6.0
_FIRST_STARTS_S = 10.0  # the longest that the first rank may need more than another one to start


def under_mpi() -> bool:
    """Return whether this process was started as one of several."""
    return launched_by_mpi().size > 1


def started_as() -> int:
    """Return the number that the launcher gave this process, 0 where there is none, without starting MPI."""
    return launched_by_mpi().rank


def let_first_rank_speak() -> None:
    """Wait, on ranks but the first, for the first to fail of the same: its end ends this process by KeyboardInterrupt.

    Ranks start at different speeds, and the first one to exit ends all, so a failure of this rank alone is reported after that.
    """
    if under_mpi() and started_as() > 0:
        time.sleep(_FIRST_STARTS_S)


def run_mpi(job: Callable[[Rank], _T]) -> list[_T] | None:
    """Do `job` as this process's rank; return the results of all by number on rank 0, None elsewhere.

    Raises IotwinError when mpi4py is missing or not of the MPI that the launcher speaks. When a rank fails it says so on stderr
    and ends the run on all nodes with its exit status; a rank that dies is noticed by mpirun or srun, which then end the others.
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
    places = sorted(world.allgather((leader, world.Get_rank())))  # node by node, whatever order mpirun dealt ranks out in
    number = places.index((leader, world.Get_rank()))
    leaders = sorted({leader for leader, _ in places})
    ranks = world.Split(0, number)
    beside = ranks.Dup()  # for threads, whose meetings must not be taken for those of training
    said = np.zeros(3, dtype=np.int64)

    def exchange(flags: int, due_ns: int) -> tuple[int, int]:
        said[:] = flags & STOP, flags & CHECKPOINT, due_ns
        ranks.Allreduce(MPI.IN_PLACE, said, op=MPI.MAX)
        # The clocks of several nodes have nothing in common; there, a rank makes up for its own delays alone.
        return int(said[0] | said[1]), int(said[2]) if len(leaders) == 1 else due_ns

    def arrive() -> Callable[[], bool]:
        test: Callable[[], bool] = beside.Ibarrier().Test
        return test

    if number:
        set_quiet(True)
    try:
        rank = Rank(number, len(places), leaders.index(leader), len(leaders), exchange, arrive)
        results: list[_T] | None = ranks.gather(job(rank), root=0)
    except BaseException as error:
        _end_everywhere(error, number)
        raise
    return results


def _end_everywhere(error: BaseException, number: int) -> None:
    """End the run on all ranks, in one line of the rank that failed; where all fail of the same, of the lowest."""
    from mpi4py import MPI

    if isinstance(error, KeyboardInterrupt):  # mpirun ends all ranks so, and says why
        MPI.COMM_WORLD.Abort(130)
    time.sleep(min(_LONGEST_SILENCE_S, number * _FIRST_SPEAKS_S))
    message = str(error) or type(error).__name__
    print(f"iotwin emulate: rank {number} on {socket.gethostname()}: {message}", file=sys.stderr, flush=True)
    MPI.COMM_WORLD.Abort(error.exit_status if isinstance(error, IotwinError) else 1)
