"""Which of several processes this one is, as its launcher's environment says: torchrun, Open MPI, MPICH and its kin, srun."""

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from common.errors import IotwinError, UsageError

# Variables of each launcher that starts one process beside others: rank, number of processes.
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and its kin
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)
_FIRST_PORT, _PORTS_END = 29500, 65000


class Launched(NamedTuple):
    """This process's rank, counted from 0, and the number of processes of its run."""

    rank: int = 0
    size: int = 1


def launched_by_mpi() -> Launched:
    """Return this process's place among those that mpirun or srun started, without starting MPI; alone where none did."""
    launchers = [Launched(_natural(rank, 0), _natural(size, 1)) for rank, size in MPI_VARIABLES if size in os.environ]
    return max(launchers, key=lambda launched: launched.size, default=Launched())


def _natural(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else otherwise


def launched_by_torchrun() -> Launched:
    """Return this process's place as RANK and WORLD_SIZE name it (torchrun, workloads.launch); alone where they are not set.

    Raises UsageError when they name no place.
    """
    launched = Launched(from_environment("RANK", 0), from_environment("WORLD_SIZE", 1))
    if launched.rank >= launched.size:
        raise UsageError(
            f"the environment's RANK {launched.rank} and WORLD_SIZE {launched.size} name no rank; they count from 0 and from 1"
        )
    return launched


def from_environment(name: str, default: int) -> int:
    """Return the number that the variable `name` holds; UsageError when it holds something else."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(f"the environment's {name} is '{text}', not a number; start ranks with torchrun or workloads.launch")
    return int(text)


@contextmanager
def claimed_ports(count: int) -> Iterator[int]:
    """Yield the first of `count` consecutive ports of this machine that are free; IotwinError when there are none.

    Until the block ends no other caller of this gets them, though nobody may have bound them yet: each is claimed by an abstract
    Unix socket of its name, which the kernel gives once, and takes back when we die.
    """
    for first in range(_FIRST_PORT, _PORTS_END - count, count):
        with ExitStack() as claims:
            if _claim(range(first, first + count), claims):
                yield first
                return
    raise IotwinError(f"no {count} consecutive ports of this machine are free for the ranks")


def _claim(ports: Sequence[int], claims: ExitStack) -> bool:
    try:
        for port in ports:
            claims.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0iotwin-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
