"""Rank 0 waits for the other ranks, which reach one another through a store that it keeps."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

LONGEST_WAIT = timedelta(minutes=30)  # for a rank that is slower than this one; as long as gloo's own


def announce(store: Any, event: str, rank: int) -> None:
    """Let rank 0 know that this rank has come to `event`. `store`: a torch.distributed.Store of all ranks."""
    with suppress(RuntimeError):  # rank 0 has ended
        store.set(f"iotwin/{event}/{rank}", "")


def wait_for_all(store: Any, event: str, rank: int, world_size: int) -> None:
    """Announce `event`. Rank 0 then waits until every rank has announced it; other ranks return at once.

    If rank 0 ended sooner, others would lose what they have yet to fetch from its store, or from itself.
    """
    announce(store, event, rank)
    if rank == 0:
        with suppress(RuntimeError):  # a rank was killed, or is slower than any rank should be
            store.wait([f"iotwin/{event}/{each}" for each in range(world_size)], LONGEST_WAIT)
