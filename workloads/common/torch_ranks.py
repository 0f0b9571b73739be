"""This process's rank, world size and device in a PyTorch job, from the environment that torchrun sets."""

import ctypes
import functools
import os
import socket
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import from_environment, launched_by_torchrun
from iotwin.workloads.common.rank_zero_last import LONGEST_WAIT, announce, wait_for_all

_POLL_S, _LONGEST_REST_S = 1e-3, 10.0
# The last reference to a sum must not be one of gloo's threads: that thread would wait for the interpreter lock, and abort a
# process that is ending.
_last_sum: deque[Any] = deque(maxlen=1)


@dataclass(frozen=True)
class TorchRanks:
    """This process's rank, the number of ranks and the device that it computes on."""

    rank: int
    world_size: int
    device: torch.device

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks. Every rank must call this method."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        _last_sum.append(distributed.all_reduce(total, async_op=True))
        _last_sum[-1].wait()
        return list(total.tolist())


@contextmanager
def join_ranks(gpu: bool = True) -> Iterator[TorchRanks]:
    """Join torch's process group, and leave it at the end of the block.

    RANK and WORLD_SIZE come from the environment; without them, this is the only process. Without `gpu`, the ranks compute on
    CPUs even if the machine has GPUs. Raises IotwinError if rank 0 cannot use MASTER_PORT.
    """
    rank, world_size = launched_by_torchrun()
    device = torch.device("cpu")
    if gpu and torch.cuda.is_available():
        device = torch.device("cuda", from_environment("LOCAL_RANK", 0) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world_size > 1:
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            # Without this, gloo resolves the host's name, which fails in some containers.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":  # else torchrun itself listens there
            _check_port(from_environment("MASTER_PORT", 0))
        store, _, _ = next(distributed.rendezvous("env://", rank, world_size, timeout=LONGEST_WAIT))
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(backend, store=store, rank=rank, world_size=world_size)
        never_destroy(distributed.group.WORLD)
        wait_for_all(store, "joined", rank, world_size)
    try:
        yield TorchRanks(rank, world_size, device)
        if world_size > 1:
            wait_for_all(store, "left", rank, world_size)
    finally:
        if world_size > 1:
            announce(store, "left", rank)
            never_destroy(_last_sum)
            _let_gloo_finish()
            distributed.destroy_process_group()


def _let_gloo_finish() -> None:
    """Wait until gloo's threads have nothing to do.

    A thread that frees a tensor late needs the interpreter lock. If the interpreter is ending, it then aborts the process.
    """
    until = time.monotonic() + _LONGEST_REST_S
    while time.monotonic() < until:
        time.sleep(_POLL_S)  # without the interpreter lock: a thread that waits for it is running when this thread has it again
        if not any(map(_runs_gloo, (task.name for task in Path("/proc/self/task").iterdir()))):
            return


def _runs_gloo(thread: str) -> bool:
    """Return whether the thread of this process with the id `thread` is one of gloo's and not asleep."""
    try:
        _, _, after = Path(f"/proc/self/task/{thread}/stat").read_text().partition("(")
    except OSError:  # it has ended
        return False
    name, _, state = after.rpartition(") ")
    return name.startswith("pt_gloo") and not state.startswith("S")


def _check_port(port: int) -> None:
    """Raise IotwinError if a program listens on the port. torch would take that program for rank 0, and wait for its answer."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as torch does: connections that end do not count
        try:
            probe.bind(("", port))
        except OSError as error:
            raise IotwinError(f"rank 0 cannot use port {port}: {error.strerror}; set MASTER_PORT to a free one") from None


def never_destroy(kept: object) -> None:
    """Keep an object alive for ever. The destruction of a process group can be a deadlock at the end of a job (torch 2.13).

    The group's destructor holds the interpreter lock while it waits for gloo's threads. One of these threads may need the lock to
    free the tensor of the last sum. Because of this, a few of a hundred ranks never ended.
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def keep_groups() -> None:
    """Keep the groups of all DistributedDataParallel models made from now on, so that a script does not hang at its end.

    A script that destroys its groups before its models would free each group with the model (see `never_destroy`).
    """
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def made(model: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
        make(model, *arguments, **options)
        never_destroy(model.process_group)

    DistributedDataParallel.__init__ = made
