"""This process's rank, world size and device in a PyTorch job, from the environment that torchrun sets."""

import ctypes
import functools
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import from_environment, launched_by_torchrun

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
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world_size)
        never_destroy(distributed.group.WORLD)
    try:
        yield TorchRanks(rank, world_size, device)
    finally:
        if world_size > 1:
            never_destroy(_last_sum)
            distributed.destroy_process_group()


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
