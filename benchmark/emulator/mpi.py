"""Ranks under MPI: mpirun or srun started several processes, and each is one rank."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from iotwin.benchmark.emulator.ranks import CHECKPOINT, STOP, Rank
from iotwin.common.errors import IotwinError
from iotwin.common.progress import set_quiet
from iotwin.common.ranks import launched_by_mpi

_T = TypeVar("_T")


def under_mpi() -> bool:
    """Return whether this process was started as one of several."""
    return launched_by_mpi().size > 1


def started_as() -> int:
    """Return the number that the launcher gave this process, 0 where there is none, without starting MPI."""
    return launched_by_mpi().rank


def run_mpi(job: Callable[[Rank], _T]) -> list[_T] | None:
    """Do `job` as this process's rank; return the results of all by number on rank 0, None elsewhere.

    Raises IotwinError when mpi4py is missing or not of the MPI that the launcher speaks, and whatever `job` raises. The command
    line then ends all ranks (`iotwin.common.ranks.run_as_one`); mpirun and srun notice a rank that dies, and end the others.
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
    background = ranks.Dup()  # for threads, whose meetings must not be mistaken for those of training
    proposed = np.zeros(3, dtype=np.int64)

    def exchange(flags: int, due_ns: int) -> tuple[int, int]:
        proposed[:] = flags & STOP, flags & CHECKPOINT, due_ns
        ranks.Allreduce(MPI.IN_PLACE, proposed, op=MPI.MAX)
        # The clocks of several nodes have nothing in common; there, a rank makes up for its own delays alone.
        return int(proposed[0] | proposed[1]), int(proposed[2]) if len(leaders) == 1 else due_ns

    def arrive() -> Callable[[], bool]:
        test: Callable[[], bool] = background.Ibarrier().Test
        return test

    if number:
        set_quiet(True)
    rank = Rank(number, len(places), leaders.index(leader), len(leaders), exchange, arrive)
    results: list[_T] | None = ranks.gather(job(rank), root=0)
    return results
