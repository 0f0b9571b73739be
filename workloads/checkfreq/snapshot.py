"""The first phase of a checkpoint: every leaf of the state copied into one buffer that is used over and over.

At once, it stalls training by one copy. Beside training, what only an update changes (the parameters and the optimizer's state)
is copied by the writing thread while the next forward and backward passes run, and the next update waits for it; all else, such
as the running means of normalisation, which change in forward passes, is copied at once in any case.
"""

import mmap
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from common.tensor_file import Tensor
from workloads.state.stateful import flatten

_ALIGNMENT = 64


class Buffer:
    """Host memory for one snapshot: pinned where there is CUDA, and open to another process by its descriptor."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("snapshot")
        self._pinned = torch.cuda.is_available()
        self._device: torch.Tensor | None = None
        self.memory = torch.empty(0, dtype=torch.uint8)

    def ensure(self, size_bytes: int) -> None:
        """Make it at least that large. What was in it is lost."""
        if size_bytes <= self.memory.numel():
            return
        self._unpin()
        os.ftruncate(self.descriptor, size_bytes)
        mapped = mmap.mmap(self.descriptor, size_bytes)
        self.memory = torch.from_numpy(np.frombuffer(mapped, np.uint8))
        if self._pinned:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), size_bytes, 0))

    def on_device(self, size_bytes: int) -> torch.Tensor:
        """Return so much memory of the CUDA device, kept for the next snapshot."""
        if self._device is None or self._device.numel() < size_bytes:
            self._device = torch.empty(size_bytes, dtype=torch.uint8, device="cuda")
        return self._device

    def _unpin(self) -> None:
        if self._pinned and self.memory.numel():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr()))

    def close(self) -> None:
        """Give the memory back, once nothing refers to it any more."""
        self._unpin()
        self.memory, self._device = torch.empty(0, dtype=torch.uint8), None
        os.close(self.descriptor)


@dataclass
class Snapshot:
    """A state in a buffer: its tensors, views of that, and the plain values around them. Whole once `copied` is set."""

    buffer: Buffer
    tensors: list[Tensor] = field(default_factory=list)
    values: Any = None
    size_bytes: int = 0
    copied: threading.Event = field(default_factory=threading.Event)  # the state may change
    copy_s: float = 0.0  # that the copying took, wherever it ran
    later: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # what is still to be copied: to, from
    reached: Any = None  # where in its work the device stood when the snapshot was begun

    def finish(self) -> None:
        """Copy what is left to copy; for the writing thread."""
        begin = time.perf_counter()
        if self.reached is None:
            for target, source in self.later:
                _copy(target, source)
        else:
            stream = torch.cuda.Stream(self.reached.device)
            with torch.cuda.stream(stream):
                stream.wait_event(self.reached)
                for target, source in self.later:
                    target.copy_(source, non_blocking=True)
            stream.synchronize()
        self.later.clear()
        self.copy_s += time.perf_counter() - begin
        self.copied.set()


def take(buffer: Buffer, state: Any, beside: bool = False, updated: Collection[int] = ()) -> Snapshot:
    """Return the snapshot of `state` in `buffer`.

    At once it is whole, or of CUDA tensors a copy on their device. With `beside`, the tensors whose first byte's address is in
    `updated`, those that only an update changes, are copied by `finish`, before which no update may be made. TypeError for a
    state that a checkpoint cannot hold.
    """
    begin = time.perf_counter()
    snapshot = Snapshot(buffer)
    device_bytes, cuda = _measure(state, snapshot)
    buffer.ensure(snapshot.size_bytes)
    on_device = buffer.on_device(device_bytes) if cuda and not beside else None
    host, device = _Carver(buffer.memory), _Carver(on_device) if on_device is not None else None

    def copy(source: torch.Tensor) -> torch.Tensor:
        if source.layout != torch.strided:
            return source  # which flatten refuses
        target = host.carve(source)
        later = beside and source.data_ptr() in updated
        if source.device.type == "cuda":
            kept = (
                source.detach() if later else device.carve(source).copy_(source.detach()) if device else source.detach().clone()
            )
            snapshot.later.append((target, kept))
        elif later:
            snapshot.later.append((target, source.detach()))
        else:
            _copy(target, source.detach())
        return target

    snapshot.tensors, snapshot.values = flatten(state, copy)
    if cuda:
        snapshot.reached = torch.cuda.Event()
        snapshot.reached.record()
    if not beside:
        snapshot.copied.set()
    snapshot.copy_s = time.perf_counter() - begin
    return snapshot


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the host by this thread alone: several that wait for one another after each tensor are slower."""
    if source.is_contiguous() and source.numel():
        np.copyto(target.view(-1).view(torch.uint8).numpy(), source.view(-1).view(torch.uint8).numpy())
    else:
        target.copy_(source)


class _Carver:
    """Cuts room for one tensor after another from memory, a uint8 tensor."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, self._at = memory, 0

    def carve(self, like: torch.Tensor) -> torch.Tensor:
        """Return room for `like`, in C order."""
        size_bytes = like.numel() * like.element_size()
        room = self._memory[self._at : self._at + size_bytes]
        self._at += _padded(size_bytes)
        return room.view(like.dtype).view(like.shape)


def _measure(state: Any, snapshot: Snapshot) -> tuple[int, bool]:
    """Set the size of the snapshot; return the bytes that lie on a CUDA device, and whether any do."""
    device_bytes, cuda = 0, False
    nothing = torch.empty(0)

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal device_bytes, cuda
        size_bytes = _padded(tensor.numel() * tensor.element_size()) if tensor.layout == torch.strided else 0
        snapshot.size_bytes += size_bytes
        if tensor.device.type == "cuda":
            device_bytes, cuda = device_bytes + size_bytes, True
        return nothing

    flatten(state, count)
    return device_bytes, cuda


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % _ALIGNMENT
