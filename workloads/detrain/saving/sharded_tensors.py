"""Tensors whose parts are on several ranks, as those of torch.distributed.fsdp.fully_shard. Each rank saves its own part."""

import sys
from collections.abc import Iterable
from typing import Any

import torch

from iotwin.common.errors import IotwinError


def is_sharded(value: Any) -> bool:
    """Return whether this process has only a part of a tensor."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(value, module.DTensor)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's part of a tensor, without a copy: the tensor itself unless it is sharded."""
    part: torch.Tensor = tensor._local_tensor if is_sharded(tensor) else tensor
    return part


def layout(tensor: Any) -> str:
    """Return in words how a sharded tensor is divided among the ranks."""
    return f"{tensor.placements} on {tensor.device_mesh}"


def joined(part: torch.Tensor, shape: list[int], stride: list[int], divided: str, held: Iterable[Any]) -> Any:
    """Return the sharded tensor with the saved `part`. `divided`: its layout in words.

    `held`: tensors of this process. Raises IotwinError if none of them has this layout.
    """
    for each in held:
        if is_sharded(each) and layout(each) == divided:
            place = part.to(each.device)
            return type(each).from_local(
                place, each.device_mesh, each.placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride)
            )
    raise IotwinError(f"it was divided as {divided}, which no tensor of this run is")
