"""In which buckets DistributedDataParallel sums gradients over the ranks: a resumed run must have those of the first run.

After its first backward pass, the model arranges its parameters anew, in the order in which their gradients were ready. The order
within a bucket decides in which order the ranks' gradients are added, and so their last bits, if there are more than two ranks.
"""

import functools
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from iotwin.workloads.common.torch_ranks import never_destroy

_NO_SYNC: Callable[..., Any] = DistributedDataParallel.no_sync


def keep_groups() -> None:
    """Keep the process groups of all such models that are made from now on, so that a script does not hang when it ends.

    A script that destroys its groups before its models would free each group with the model (see `never_destroy`).
    """
    make = DistributedDataParallel.__init__

    @functools.wraps(make)
    def made(model: DistributedDataParallel, *arguments: Any, **options: Any) -> None:
        make(model, *arguments, **options)
        never_destroy(model.process_group)

    DistributedDataParallel.__init__ = made


def has_final_buckets(value: Any) -> bool:
    """Return whether an object is such a model and has its final buckets.

    If the next forward pass would make these, this function makes them already. All ranks must call it between two steps.
    """
    if not isinstance(value, DistributedDataParallel):
        return False
    value._has_rebuilt_buckets |= value.reducer._rebuild_buckets()
    return value._has_rebuilt_buckets


def sum_each_gradient(always: bool) -> None:
    """Let `no_sync` of all such models do nothing (`always`), so that the next step makes the buckets, or what it did."""
    DistributedDataParallel.no_sync = (lambda _: nullcontext()) if always else _NO_SYNC
