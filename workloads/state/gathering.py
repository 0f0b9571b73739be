"""Collects the states of all ranks on rank 0."""

from typing import Any

import msgspec
import numpy as np
import torch
from torch import distributed

from iotwin.common.tensor_file import Tensor
from iotwin.common.untrusted_files import decode_foreign
from iotwin.workloads.state.torch_state import flatten, unflatten


def gathered(state: Any) -> list[Any]:
    """Return, on rank 0, the states of all ranks in rank order; an empty list on other ranks. Every rank must call it."""
    contents = _gather(encode(state))
    return [] if distributed.get_rank() else [decode(content) for content in contents]


def encode(state: Any) -> bytes:
    """Return a state as JSON. Two equal states have the same bytes."""
    tensors, values = flatten(state)
    return msgspec.json.encode([[*tensor[:3], tensor.data.tobytes()] for tensor in tensors] + [values])


def _gather(content: bytes) -> list[bytes]:
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


def decode(content: bytes) -> Any:
    """Return the state that `encode` encoded as `content`."""
    *rows, values = decode_foreign(content, list[Any], "another rank's part of the checkpoint")
    tensors = {}
    for name, dtype, shape, encoded in rows:
        data = np.frombuffer(bytearray(msgspec.convert(encoded, bytes)), np.uint8)
        tensors[name] = Tensor(name, dtype, tuple(shape), data)
    return unflatten(values, tensors)
