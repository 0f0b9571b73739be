"""Read the rank of this process from the environment that torchrun, Open MPI, MPICH or srun sets, and find free ports for ranks.

Under MPI, an error on one rank ends all ranks (`run_as_one`).
"""

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.signals import interrupted_status

# Environment variables that launchers of several processes set: (rank, number of processes).
MPI_VARIABLES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),  # Open MPI
    ("PMI_RANK", "PMI_SIZE"),  # MPICH and MPIs derived from it
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),  # srun
)
_TORCHRUN = ("RANK", "WORLD_SIZE")
# Number of processes on this machine, by the variable of the rank.
_LOCAL_SIZES = {"OMPI_COMM_WORLD_RANK": "OMPI_COMM_WORLD_LOCAL_SIZE", "PMI_RANK": "MPI_LOCALNRANKS", "RANK": "LOCAL_WORLD_SIZE"}
# Variables that together differ between two launches, by the variable of the rank. torchrun's MASTER_PORT and TORCHELASTIC_RUN_ID
# may be the same in every launch, but its error file is FOLDER_OF_THE_LAUNCH/attempt_N/RANK/error.json.
_LAUNCH_IDS = {
    "OMPI_COMM_WORLD_RANK": ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"),
    "PMI_RANK": ("PMI_JOBID",),
    "SLURM_PROCID": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "RANK": ("TORCHELASTIC_ERROR_FILE",),
}
_ATTEMPT = "/attempt_"
HOSTS_OF_RANKS = "IOTWIN_HOSTS_OF_RANKS"  # variable of a job on several hosts: the address of each rank's host, joined by commas
_SIOCGIFADDR = 0x8915  # netdevice(7): the IPv4 address of an interface
_FIRST_PORT, _PORTS_END = 29500, 65000
_MOST_NODES = 1 << 16
_MOST_DIGITS = 9  # of a rank or a number of processes
_REPORT_STAGGER_S = 3.0  # delay between two ranks that report the same error
_LONGEST_WAIT_TO_REPORT_S = 6.0
_LATEST_START_S = 10.0  # longest delay between the first rank's start and that of rank 0


class Launched(NamedTuple):
    """The rank of this process, from 0, and the number of processes in its run."""

    rank: int = 0
    size: int = 1


class NodeTask(NamedTuple):
    """One of the processes that a launcher started (a task), and what the launcher reports about the task's machine."""

    rank: int
    node: str  # name of the machine
    launch: str  # the same for all tasks of one launch on one machine, and for no other
    tasks_here: int | None  # tasks of the launch on this machine; None: unknown


def launched_by_mpi() -> Launched:
    """Return the rank of this process under mpirun or srun, without initialising MPI; rank 0 of 1 if neither started it."""
    return _launcher(MPI_VARIABLES)[1]


def _launcher(variables: Sequence[tuple[str, str]]) -> tuple[str, Launched]:
    """Return (variable of the rank, rank and size) of the launcher that started the most processes; rank 0 of 1 without one."""
    launchers = [(rank, Launched(_natural(rank, 0), _natural(size, 1))) for rank, size in variables if size in os.environ]
    return max(launchers, key=lambda launcher: launcher[1].size, default=("", Launched()))


def node_task() -> NodeTask | None:
    """Return this process as a task of srun, mpirun or torchrun; None if none of them started it as one of several."""
    name, (rank, size) = _launcher((*MPI_VARIABLES, _TORCHRUN))
    if size == 1:
        return None
    ids = (os.environ.get(variable, "").partition(_ATTEMPT)[0] for variable in _LAUNCH_IDS[name])
    # The tasks of one machine are children of the same process, unless a wrapper such as sudo starts each.
    launch = ".".join(filter(None, ids)) or f"parent {os.getppid()}"
    here = _slurm_tasks_here() if name == "SLURM_PROCID" else _natural(_LOCAL_SIZES[name], 0)
    return NodeTask(rank, os.environ.get("SLURMD_NODENAME") or os.uname().nodename, launch, here or None)


def _slurm_tasks_here() -> int:
    """Return the number of tasks of srun's step on this node, from a list such as `4(x15),2`; 0 if it is unknown."""
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")):
        counts += [int(count)] * min(int(times or 1), _MOST_NODES)
    node = _natural("SLURM_NODEID", len(counts))
    return counts[node] if node < len(counts) else 0


def _natural(name: str, otherwise: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else otherwise


def _mpi() -> Any:
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return None
    return mpi


def await_turn_to_report() -> str:
    """Wait long enough for lower MPI ranks to report the same error. Return a prefix for the report: 'rank 1 on node-a: '.

    A lower rank that reports the error ends all ranks. It ends this rank by KeyboardInterrupt, so an error of all ranks is
    reported only once. The prefix is '' if there are no other ranks or MPI is not initialised.
    """
    launched = launched_by_mpi()
    if launched.size == 1:
        return ""
    begun = _mpi() is not None
    if launched.rank:
        time.sleep(min(_LONGEST_WAIT_TO_REPORT_S, launched.rank * _REPORT_STAGGER_S) if begun else _LATEST_START_S)
    return f"rank {launched.rank} on {os.uname().nodename}: " if begun else ""


def run_as_one(run: Callable[[], int]) -> int:
    """Return the exit status that `run` returns or exits with. Under MPI, an exception or a status other than 0 ends all ranks.

    Otherwise, a failed rank would wait in MPI_Finalize for other ranks, which would wait for it in a barrier. Before MPI is
    initialised, the launcher itself ends all ranks if one exits with a status other than 0.
    """
    if launched_by_mpi().size == 1:
        return run()
    try:
        status = run()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:  # another rank has reported an error and ended all ranks
        status = interrupted_status()
    except Exception:
        import traceback

        traceback.print_exc()
        status = 1
    if status and (mpi := _mpi()) is not None:
        sys.stderr.flush()
        mpi.COMM_WORLD.Abort(status)
    return status


def launched_by_torchrun() -> Launched:
    """Return the rank from torchrun's variables RANK and WORLD_SIZE, which workloads.launch sets, too; rank 0 of 1 without them.

    Raises UsageError if RANK is not below WORLD_SIZE.
    """
    launched = Launched(from_environment("RANK", 0), from_environment("WORLD_SIZE", 1))
    if launched.rank >= launched.size:
        raise UsageError(
            f"the environment's RANK {launched.rank} and WORLD_SIZE {launched.size} name no rank; they count from 0 and from 1"
        )
    return launched


def rank_variables(rank: int, size: int, port: int, address: str = "127.0.0.1", local_rank: int | None = None) -> dict[str, str]:
    """Return the environment variables that torchrun sets for one of `size` ranks. Rank 0 listens on `port` of `address`.

    `local_rank` is the rank's index among those of its machine; None if all are on one machine.
    """
    local_rank = rank if local_rank is None else local_rank
    ranks = {"RANK": rank, "LOCAL_RANK": local_rank, "WORLD_SIZE": size, "MASTER_ADDR": address, "MASTER_PORT": port}
    return {name: str(value) for name, value in ranks.items()}


def interface_towards(address: str) -> str | None:
    """Return the name of the network interface by which this machine reaches the IPv4 address or host `address`; None if none."""
    import fcntl
    import socket  # takes 5 ms, too long for every start of the command line

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((address, 1))  # sends nothing
        except OSError:
            return None
        own = socket.inet_aton(probe.getsockname()[0])
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # an interface without an address
                if fcntl.ioctl(probe, _SIOCGIFADDR, name.encode().ljust(40, b"\0"))[20:24] == own:
                    return name
    return None


def become_local_rank(rank: int, size: int, port: int) -> None:
    """Set this process's environment variables to `rank_variables`, unless `size` is 1."""
    if size > 1:
        os.environ.update(rank_variables(rank, size, port))
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # else gloo resolves the host's name, which fails in some containers


def from_environment(name: str, default: int) -> int:
    """Return the number in the environment variable `name`, or `default` if unset. Raises UsageError if it is no number."""
    text = os.environ.get(name, str(default))
    if not text.isdecimal():
        raise UsageError(
            f"the environment's {name} is '{text}', not a number; start ranks with torchrun or iotwin.workloads.launch"
        )
    return int(text)


@contextmanager
def claimed_ports(count: int) -> Iterator[int]:
    """Yield the first of `count` consecutive free ports of this machine. Raises IotwinError if there are none.

    Until the block ends, no other caller of this function gets these ports, even if nobody listens on them. For each port, an
    abstract Unix socket named after it claims it: the kernel grants a name only once, and frees it when this process ends.
    """
    for first in range(_FIRST_PORT, _PORTS_END - count, count):
        with ExitStack() as claims:
            if _claim(range(first, first + count), claims):
                yield first
                return
    raise IotwinError(f"no {count} consecutive ports of this machine are free for the ranks")


def _claim(ports: Sequence[int], claims: ExitStack) -> bool:
    import socket  # takes 5 ms, too long for every start of the command line

    try:
        for port in ports:
            claims.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0iotwin-port-{port}")
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
