"""Run ranks under MPI: mpirun or srun starts several processes, and each is one rank."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

from iotwin.benchmark.emulator.ranks import CHECKPOINT, STOP, Rank
from iotwin.common.errors import IotwinError
from iotwin.common.progress import set_quiet
from iotwin.common.ranks import launched_by_mpi

_T = TypeVar("_T")


def under_mpi() -> bool:
    """Return whether mpirun or srun started this process as one of several."""
    return launched_by_mpi().size > 1


def started_as() -> int:
    """Return the rank that mpirun or srun gave this process, without initialising MPI; 0 without a launcher."""
    return launched_by_mpi().rank


def run_mpi(job: Callable[[Rank], _T]) -> list[_T] | None:
    """Run `job` as the rank of this process. Return the results of all ranks in order on rank 0, None on other ranks.

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
    background = ranks.Dup()  # for background threads, whose barriers must not match those of training
    proposed = np.zeros(3, dtype=np.int64)

    def exchange(flags: int, due_ns: int) -> tuple[int, int]:
        proposed[:] = flags & STOP, flags & CHECKPOINT, due_ns
        ranks.Allreduce(MPI.IN_PLACE, proposed, op=MPI.MAX)
        # Clocks of different nodes are not comparable, so with several nodes each rank compensates only its own delays.
        return int(proposed[0] | proposed[1]), int(proposed[2]) if len(leaders) == 1 else due_ns

    def arrive() -> Callable[[], bool]:
        test: Callable[[], bool] = background.Ibarrier().Test
        return test

    if number:
        set_quiet(True)
    rank = Rank(number, len(sorted_ranks), leaders.index(leader), len(leaders), exchange, arrive)
    results: list[_T] | None = ranks.gather(job(rank), root=0)
    return results
