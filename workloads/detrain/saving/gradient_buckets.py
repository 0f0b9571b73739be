"""The buckets in which DistributedDataParallel sums gradients over the ranks: a resumed run needs those of the first run.

After its first backward pass, the model arranges its parameters anew, in the order in which their gradients were ready. The order
within a bucket decides in which order the ranks' gradients are added, and so their last bits, if there are more than two ranks.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from torch.nn.parallel import DistributedDataParallel

_NO_SYNC: Callable[..., Any] = DistributedDataParallel.no_sync


def has_final_buckets(value: Any) -> bool:
    """Return whether an object is a DistributedDataParallel with its final buckets.

    If the model would form these buckets in its next forward pass, it does so now. All ranks must call this between two steps.
    """
    if not isinstance(value, DistributedDataParallel):
        return False
    value._has_rebuilt_buckets |= value.reducer._rebuild_buckets()
    return value._has_rebuilt_buckets


def sum_each_gradient(always: bool) -> None:
    """With `always`, disable `no_sync` of all models, so that the next step forms the buckets; else enable it again."""
    DistributedDataParallel.no_sync = (lambda _: nullcontext()) if always else _NO_SYNC
