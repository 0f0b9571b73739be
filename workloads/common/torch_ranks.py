"""This process's rank, world size and device in a PyTorch job, from the environment that torchrun sets."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import distributed

from iotwin.common.ranks import from_environment, launched_by_torchrun


@dataclass(frozen=True)
class TorchRanks:
    """This process's rank, the number of ranks and the device that it computes on."""

    rank: int
    world_size: int
    device: torch.device

    def sum(self, *values: float) -> list[float]:
        """Return each value summed over all ranks. Every rank must call it."""
        if self.world_size == 1:
            return list(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(total)
        return list(total.tolist())


@contextmanager
def join_ranks() -> Iterator[TorchRanks]:
    """Join the process group by RANK and WORLD_SIZE (unset: a single process) and leave it when the block ends."""
    rank, world_size = launched_by_torchrun()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", from_environment("LOCAL_RANK", 0) % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world_size > 1:
        if os.environ.get("MASTER_ADDR") in ("127.0.0.1", "localhost"):
            # By default gloo resolves the host's name, which fails in some containers.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        distributed.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=rank, world_size=world_size)
        never_destroy(distributed.group.WORLD)
    try:
        yield TorchRanks(rank, world_size, device)
    finally:
        if world_size > 1:
            distributed.destroy_process_group()


def never_destroy(group: object) -> None:
    """Keep the group's object until the process ends.

    The group's destructor waits for gloo's threads and holds the interpreter lock meanwhile. A thread that still has to free the
    tensor of the last sum needs that lock. So one rank in some tens would never end (torch 2.13).
    """
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
