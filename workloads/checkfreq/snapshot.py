"""The first phase of a checkpoint: every leaf of the state copied into one buffer that is used over and over.

At once, it stalls training by one copy. Beside training, what only an update changes (the parameters and the optimizer's state)
is copied by the writing thread while the next forward and backward passes run, and the next update waits for it; all else, such
as the running means of normalisation, which change in forward passes, is copied at once in any case, and so are small tensors.
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

from common.tensor_file import ALIGNMENT, Tensor
from workloads.state.nested import ARRAY, TENSOR, flatten_by
from workloads.state.stateful import dtype_name, flatten

_SMALL_BYTES = 256 << 10  # copied in less time than it costs training to have another thread do it


class Room(NamedTuple):
    """Where a tensor lies in a snapshot's host memory, in C order: `told` holds its bytes, of which `offset` is the first."""

    tensor: torch.Tensor
    told: Tensor
    offset: int
    end: int  # where the next one lies


class Buffer:
    """Host memory for one snapshot: pinned where there is CUDA, and open to another process by its descriptor."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("snapshot")
        self._pinned = torch.cuda.is_available()
        self.memory = self.on_device = torch.empty(0, dtype=torch.uint8)
        self.rooms: list[Room] = []  # of the tensors of the latest snapshot, which the next one most likely has, too

    def ensure(self, size_bytes: int, device_bytes: int) -> None:
        """Make it at least that large, and the memory on the CUDA device. What was in it is lost."""
        if device_bytes > self.on_device.numel():
            self.on_device = torch.empty(device_bytes, dtype=torch.uint8, device="cuda")
        if size_bytes <= self.memory.numel():
            return
        self._unpin()
        os.ftruncate(self.descriptor, size_bytes)
        mapped = mmap.mmap(self.descriptor, size_bytes)
        self.memory = torch.from_numpy(np.frombuffer(mapped, np.uint8))
        self.rooms.clear()
        if self._pinned:
            torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(self.memory.data_ptr(), size_bytes, 0))

    def _unpin(self) -> None:
        if self._pinned and self.memory.numel():
            torch.cuda.check_error(torch.cuda.cudart().cudaHostUnregister(self.memory.data_ptr()))

    def close(self) -> None:
        """Give the memory back, once nothing refers to it any more."""
        self._unpin()
        self.memory = self.on_device = torch.empty(0, dtype=torch.uint8)
        self.rooms.clear()
        os.close(self.descriptor)


@dataclass
class Snapshot:
    """A state in a buffer: its tensors, views of that, and the plain values around them. Whole once `copied` is set."""

    buffer: Buffer
    tensors: list[Tensor] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)  # of the tensors in the buffer
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
    `updated`, those that only an update changes, are copied by `finish`, before which no update may be made, unless they are
    small. TypeError for a state that a checkpoint cannot hold.
    """
    begin = time.perf_counter()
    try:
        snapshot = _fill(buffer, state, beside, updated)
    except _NoRoom:  # the first, or a state that has grown: the others are spared the look beforehand
        buffer.ensure(*_measure(state, beside))
        snapshot = _fill(buffer, state, beside, updated)
    if not (beside and snapshot.later):
        snapshot.copied.set()
    snapshot.copy_s = time.perf_counter() - begin
    return snapshot


def _fill(buffer: Buffer, state: Any, beside: bool, updated: Collection[int]) -> Snapshot:
    """Return the snapshot that `take` does; _NoRoom where the buffer is too small."""
    snapshot = Snapshot(buffer)
    host, device = _Carver(buffer.memory), _Carver(buffer.on_device)
    rooms = _Rooms(host, buffer.rooms)
    cuda = False

    def copied(name: str, source: torch.Tensor) -> Tensor:
        nonlocal cuda
        room = rooms.next(name, source)
        later = beside and room.told.data.size > _SMALL_BYTES and source.data_ptr() in updated
        if source.is_cuda:
            cuda = True
            if not later:
                source = source.clone() if beside else device.carve(source).copy_(source)
            snapshot.later.append((room.tensor, source))
        elif later:
            snapshot.later.append((room.tensor, source))
        else:
            _copy(room.tensor, source)
        snapshot.offsets.append(room.offset)
        return room.told

    def leaf(name: str, value: Any) -> tuple[str, Tensor] | None:
        if isinstance(value, torch.Tensor):
            return TENSOR, copied(name, value.detach() if value.requires_grad else value)
        if isinstance(value, np.ndarray):
            return ARRAY, copied(name, torch.from_numpy(value))
        return None

    snapshot.tensors, snapshot.values = flatten_by(leaf, state)
    snapshot.size_bytes = host.used
    if cuda:
        snapshot.reached = torch.cuda.Event()
        snapshot.reached.record()
    return snapshot


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor of the host by this thread alone: several that wait for one another after each tensor are slower."""
    if source.is_contiguous() and not (source.is_conj() or source.is_neg()):
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.nbytes)
    else:
        target.copy_(source)


class _NoRoom(Exception):
    """A state is larger than the memory for it."""


class _Carver:
    """Cuts room for one tensor after another from memory, a uint8 tensor."""

    def __init__(self, memory: torch.Tensor) -> None:
        self._memory, self.used = memory, 0

    def carve(self, like: torch.Tensor) -> torch.Tensor:
        """Return room for `like`, in C order; _NoRoom when there is not enough."""
        begin = self.used
        self.used += _padded(like.nbytes)
        if self.used > self._memory.numel():
            raise _NoRoom
        end = begin + like.nbytes
        self._memory[end : self.used].zero_()  # between tensors a file has zeros
        return self._memory[begin:end].view(like.dtype).view(like.shape)


class _Rooms:
    """The rooms of one tensor after another; `kept`, those of the snapshot before, serve as long as tensors are alike."""

    def __init__(self, carver: _Carver, kept: list[Room]) -> None:
        self._carver, self._kept, self._count = carver, kept, 0

    def next(self, name: str, like: torch.Tensor) -> Room:
        """Return the room for `like`; _NoRoom when there is not enough, TypeError when no checkpoint can hold it."""
        dtype, index = dtype_name(name, like), self._count
        self._count += 1
        if index < len(self._kept):
            room = self._kept[index]
            # So were all before it: it lies at the same place.
            if room.told.name == name and room.told.dtype == dtype and room.tensor.shape == like.shape:
                self._carver.used = room.end
                return room
            del self._kept[index:]
        offset = self._carver.used
        tensor = self._carver.carve(like)
        told = Tensor(name, dtype, tuple(like.shape), tensor.reshape(-1).view(torch.uint8).numpy())
        self._kept.append(Room(tensor, told, offset, self._carver.used))
        return self._kept[-1]


def _measure(state: Any, beside: bool) -> tuple[int, int]:
    """Return the bytes that a snapshot takes of the host's memory, and of the CUDA device's."""
    host_bytes = device_bytes = 0
    nothing = torch.empty(0)

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal host_bytes, device_bytes
        size_bytes = _padded(tensor.nbytes) if tensor.layout == torch.strided else 0
        host_bytes += size_bytes
        if tensor.device.type == "cuda" and not beside:
            device_bytes += size_bytes
        return nothing

    flatten(state, count)
    return host_bytes, device_bytes


def _padded(size_bytes: int) -> int:
    return size_bytes + -size_bytes % ALIGNMENT
