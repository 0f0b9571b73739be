"""Computes a digest of a batch. A resumed job compares digests to check that it repeats the interrupted job's batches."""

import hashlib
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

_MOST_VALUES = 256  # most values of a tensor, evenly spaced, and most first items of a list, that enter the digest


def batch_digest(batch: Any) -> str:
    """Return a digest of `batch`: of the type, the shape and up to 256 values of each tensor, array and list in it."""
    digest = hashlib.sha256()
    for part in _parts(batch):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        value = torch.from_numpy(value)
    if isinstance(value, torch.Tensor):
        yield f"{value.dtype} {tuple(value.shape)}".encode()
        if value.layout == torch.strided and value.numel():
            flat = value.detach().reshape(-1)
            some = flat[:: max(1, len(flat) // _MOST_VALUES)].cpu().contiguous()
            yield some.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield repr(key).encode()
            yield from _parts(each)
    elif isinstance(value, (list, tuple)):
        yield f"{type(value).__name__} {len(value)}".encode()
        for each in islice(value, _MOST_VALUES):
            yield from _parts(each)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        yield repr(value).encode()
    elif hasattr(value, "__dict__"):
        yield from _parts(vars(value))
    else:
        yield type(value).__name__.encode()
