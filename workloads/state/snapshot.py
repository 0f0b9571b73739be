"""The first phase of a checkpoint: `take` copies every tensor of the state into one buffer, which later snapshots reuse.

A synchronous copy stalls training until it ends. With `overlap`, the writing thread copies parameters and optimizer state during
the next forward and backward passes, and the next weight update waits for this copy. All other tensors are copied at once,
because forward passes may change them (as the running means of batch normalisation). Small tensors are copied at once, too.
"""

import ctypes
import mmap
import os
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch

from iotwin.common.tensor_file import ALIGNMENT, Tensor
from iotwin.workloads.state.nested_state import ARRAY, TENSOR, flatten_by
from iotwin.workloads.state.torch_state import dtype_name, flatten

# tensors up to this size are copied at once, which takes less time than leaving the copy to another thread
_SMALL_BYTES = 256 << 10


class Slot(NamedTuple):
    """The part of a snapshot's host memory for a tensor, as a torch tensor in C order and as a tensor of the checkpoint file."""

    tensor: torch.Tensor
    file_tensor: Tensor
    offset: int
    end: int  # offset of the next slot


class Buffer:
    """Host memory for one snapshot, pinned if CUDA is available. Another process can map it by `descriptor`."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("snapshot")
        self._pinned = torch.cuda.is_available()
        self.memory = self.on_device = torch.empty(0, dtype=torch.uint8)
        self.slots: list[Slot] = []  # slots of the latest snapshot, for reuse: the next snapshot probably has the same tensors

    def ensure(self, size_bytes: int, device_bytes: int) -> None:
        """Grow the host memory and the memory on the CUDA device to at least these sizes. The old content is lost."""
        if device_bytes > self.on_device.numel():
            self.on_device = torch.empty(device_bytes, dtype=torch.uint8, device="cuda")
        if size_bytes <= self.memory.numel():
            return
        self._unpin()
        os.ftruncate(self.descriptor, size_bytes)
        mapped = mmap.mmap(self.descriptor, size_bytes)
        self.memory = torch.from_numpy(np.frombuffer(mapped, np.uint8))
        self.slots.clear()
        if self._pinned:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), size_bytes, 0))

    def _unpin(self) -> None:
        if self._pinned and self.memory.numel():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr()))

    def close(self) -> None:
        """Free the memory, which no snapshot may use any more."""
        self._unpin()
        self.memory = self.on_device = torch.empty(0, dtype=torch.uint8)
        self.slots.clear()
        os.close(self.descriptor)


@dataclass
class StateSnapshot:
    """A copied state: its tensors, which are views of `buffer`, and its plain values. It is complete once `copied` is set."""

    buffer: Buffer
    tensors: list[Tensor] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # offset of each tensor in the buffer
    values: Any = None
    size_bytes: int = 0
    copied: threading.Event = field(default_factory=threading.Event)  # set when the job may change its state
    copy_s: float = 0.0  # time of copying, summed over threads
    pending: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)  # (target, source) still to be copied
    device_event: Any = None  # CUDA event at the start of the snapshot, None without CUDA tensors

    def finish(self) -> None:
        """Copy the pending tensors, on the writing thread."""
        begin = time.perf_counter()
        if self.device_event is None:
            for target, source in self.pending:
                _copy(target, source)
        else:
            stream = torch.cuda.Stream(self.device_event.device)
            with torch.cuda.stream(stream):
                stream.wait_event(self.device_event)
                for target, source in self.pending:
                    target.copy_(source, non_blocking=True)
            stream.synchronize()
        self.pending.clear()
        self.copy_s += time.perf_counter() - begin
        self.copied.set()


def take(buffer: Buffer, state: Any, overlap: bool = False, updated: Collection[int] = ()) -> StateSnapshot:
    """Copy `state` to `buffer` and return the snapshot. Raises TypeError if a checkpoint cannot hold the state.

    On return, CPU tensors have been copied, and CUDA tensors have been copied on their device. With `overlap`, large tensors
    whose address is in `updated` are only copied by `finish`; weights must not be updated before that.
    """
    begin = time.perf_counter()
    try:
        snapshot = _fill(buffer, state, overlap, updated)
    except _BufferTooSmall:  # the first snapshot, or the state has grown
        buffer.ensure(*_measure(state, overlap))
        snapshot = _fill(buffer, state, overlap, updated)
    if not (overlap and snapshot.pending):
        snapshot.copied.set()
    snapshot.copy_s = time.perf_counter() - begin
    return snapshot


def _fill(buffer: Buffer, state: Any, overlap: bool, updated: Collection[int]) -> StateSnapshot:
    snapshot = StateSnapshot(buffer)
    host, device = _Allocator(buffer.memory), _Allocator(buffer.on_device)
    slots = _SlotReuse(host, buffer.slots)
    cuda = False

    def copied(name: str, source: torch.Tensor) -> Tensor:
        nonlocal cuda
        slot = slots.next(name, source)
        later = overlap and slot.file_tensor.data.size > _SMALL_BYTES and source.data_ptr() in updated
        if source.is_cuda:
            cuda = True
            if not later:
                source = source.clone() if overlap else device.allocate(source).copy_(source)
            snapshot.pending.append((slot.tensor, source))
        elif later:
            snapshot.pending.append((slot.tensor, source))
        else:
            _copy(slot.tensor, source)
        snapshot.offsets.append(slot.offset)
        return slot.file_tensor

    def leaf(name: str, value: Any) -> tuple[str, Tensor] | None:
        if isinstance(value, torch.Tensor):
            return TENSOR, copied(name, value.detach() if value.requires_grad else value)
        if isinstance(value, np.ndarray):
            return ARRAY, copied(name, torch.from_numpy(value))
        return None

    snapshot.tensors, snapshot.values = flatten_by(leaf, state)
    snapshot.size_bytes = host.used
    if cuda:
        snapshot.device_event = torch.cuda.Event()
        snapshot.device_event.record()
    return snapshot


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a CPU tensor in this thread only. torch would use its thread pool, which is slower since it waits for each tensor."""
    if source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        target.copy_(source)


class _BufferTooSmall(Exception):
    pass


class _Allocator:
    """Allocates tensors one after another in `memory`, a uint8 tensor."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, self.used = memory, 0

    def allocate(self, like: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the shape and type of `like`, in C order. Raises _BufferTooSmall."""
        begin = self.used
        self.used += _padded(like.nbytes)
        if self.used > self._memory.numel():
            raise _BufferTooSmall
        end = begin + like.nbytes
        self._memory[end : self.used].zero_()  # the padding of the checkpoint file
        return self._memory[begin:end].view(like.dtype).view(like.shape)


class _SlotReuse:
    """Returns a slot in memory for each tensor of a snapshot.

    The slots of the previous snapshot (`kept`) are reused up to the first tensor with another name, type or shape.
    """

    def __init__(self, allocator: _Allocator, kept: list[Slot]) -> None:
        self._allocator, self._kept, self._count = allocator, kept, 0

    def next(self, name: str, like: torch.Tensor) -> Slot:
        """Return the slot for `like`. Raises _BufferTooSmall, and TypeError if a checkpoint cannot hold `like`."""
        dtype, index = dtype_name(name, like), self._count
        self._count += 1
        if index < len(self._kept):
            slot = self._kept[index]
            # All earlier slots matched too, so the slot's offset is still right.
            if slot.file_tensor.name == name and slot.file_tensor.dtype == dtype and slot.tensor.shape == like.shape:
                self._allocator.used = slot.end
                return slot
            del self._kept[index:]
        offset = self._allocator.used
        tensor = self._allocator.allocate(like)
        file_tensor = Tensor(name, dtype, tuple(like.shape), tensor.reshape(-1).view(torch.uint8).numpy())
        self._kept.append(Slot(tensor, file_tensor, offset, self._allocator.used))
        return self._kept[-1]


def _measure(state: Any, overlap: bool) -> tuple[int, int]:
    """Return how many bytes a snapshot of `state` needs in host memory, and on the CUDA device."""
    host_bytes = device_bytes = 0
    nothing = torch.empty(0)

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal host_bytes, device_bytes
        size_bytes = _padded(tensor.nbytes) if tensor.layout == torch.strided else 0
        host_bytes += size_bytes
        if tensor.device.type == "cuda" and not overlap:
            device_bytes += size_bytes
        return nothing

    flatten(state, count)
    return host_bytes, device_bytes


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % ALIGNMENT
