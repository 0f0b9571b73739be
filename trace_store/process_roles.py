"""Decide the roles of processes: rank, loader or helper."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def process_roles(
    pids: Sequence[int], parents: Sequence[int], has_executed: Sequence[bool], dataset_bytes: NDArray[np.int64]
) -> list[str]:
    """Return the role of each process. All arguments have one entry per process.

    A loader is a fork (without exec) that reads the data set. A rank is the parent of loaders, or another process that reads the
    data set. All other processes are helpers.
    """
    known = set(pids)
    loader = [
        not ran and parent in known and bool(size)
        for parent, ran, size in zip(parents, has_executed, dataset_bytes.tolist(), strict=True)
    ]
    fed = {parent for parent, is_loader in zip(parents, loader, strict=True) if is_loader}
    roles = []
    for pid, is_loader, size in zip(pids, loader, dataset_bytes.tolist(), strict=True):
        roles.append("loader" if is_loader else "rank" if pid in fed or size else "helper")
    return roles
