"""States of all ranks, brought together."""

from typing import Any

import msgspec
import numpy as np
import torch
from torch import distributed

from common.tensor_file import Tensor
from workloads.state.stateful import flatten, unflatten


def gathered(state: Any) -> list[Any]:
    """Return the state that each rank gave, on rank 0; nothing on the others. Every rank must call it."""
    tensors, values = flatten(state)
    contents = _gather(msgspec.json.encode([[*tensor[:3], tensor.data.tobytes()] for tensor in tensors] + [values]))
    return [] if distributed.get_rank() else [_decode(content) for content in contents]


def _gather(content: bytes) -> list[bytes]:
    """Return the `content` of every rank."""
    device = "cuda" if distributed.get_backend() == "nccl" else "cpu"
    world_size = distributed.get_world_size()
    length = torch.tensor([len(content)], device=device)
    lengths = [torch.zeros_like(length) for _ in range(world_size)]
    distributed.all_gather(lengths, length)
    longest = max(int(each) for each in lengths)
    own = torch.frombuffer(bytearray(content.ljust(longest)), dtype=torch.uint8).to(device)
    gathered_bytes = [torch.empty_like(own) for _ in range(world_size)]
    distributed.all_gather(gathered_bytes, own)
    return [each[: int(size)].cpu().numpy().tobytes() for each, size in zip(gathered_bytes, lengths, strict=True)]


def _decode(content: bytes) -> Any:
    *rows, values = msgspec.json.decode(content)
    tensors = {}
    for name, dtype, shape, encoded in rows:
        data = np.frombuffer(bytearray(msgspec.convert(encoded, bytes)), np.uint8)
        tensors[name] = Tensor(name, dtype, tuple(shape), data)
    return unflatten(values, tensors)
