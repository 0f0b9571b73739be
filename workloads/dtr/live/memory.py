"""Counts the bytes of storages, and makes room before an operation allocates."""

import weakref
from collections import deque
from typing import Any

import torch
from torch import UntypedStorage

from iotwin.common.errors import IotwinError
from iotwin.workloads.dtr.live.candidates import Candidates
from iotwin.workloads.dtr.live.device_memory import DeviceMemory
from iotwin.workloads.dtr.live.offload import OffloadFile
from iotwin.workloads.dtr.live.operations import AllocationPlan
from iotwin.workloads.dtr.live.recomputation_graph import EVICTED
from iotwin.workloads.dtr.live.values import Stored, Value
from iotwin.workloads.dtr.simulator.heuristics import Heuristic

# Room for what a kernel on a GPU allocates for itself, as long as that is unknown: as much as cuBLAS takes on a Hopper GPU.
_FIRST_CALL_BYTES = 32 << 20


class BudgetError(IotwinError):
    """The budget is too small for an operation, even if all that can be evicted is evicted.

    `reason` describes the operation. With a budget below `least_bytes`, no choice of evictions makes the operation fit.
    `enough_bytes`: a budget with which training succeeded; None if unknown.
    """

    def __init__(self, reason: str, least_bytes: int, enough_bytes: int | None = None) -> None:
        enough = "" if enough_bytes is None else f", and {enough_bytes} bytes were enough for two steps"
        super().__init__(f"{reason}; no budget below {least_bytes} bytes is possible{enough}")
        self.reason, self.least_bytes, self.enough_bytes = reason, least_bytes, enough_bytes

    def __reduce__(self) -> tuple[type, tuple[str, int, int | None]]:
        return type(self), (self.reason, self.least_bytes, self.enough_bytes)  # else a pool of processes could not pass it on


class DtrMemory:
    """The storages that operations have touched, their contents, and the budget in bytes of those on one device."""

    def __init__(
        self, budget: int, heuristic: Heuristic, device: torch.device, offload: OffloadFile | None = None, **choice: Any
    ) -> None:  # fmt: skip
        self.budget = budget
        self.limit: float = budget
        self.device = DeviceMemory(device)
        self.candidates = Candidates(heuristic, **choice)
        self.offload = offload
        self.used = self.device.allocated()
        self.peak = self.used
        self.least = 0  # the smallest budget with which all operations so far could have run
        self.evictions = 0
        self.clock = 1  # the operations' time so far, in ns; staleness is counted in it
        self._storages: set[Stored] = set()
        self.dead: deque[Stored] = deque()  # storages that were freed since the last call of settle_deaths

    def find(self, storage: UntypedStorage) -> Stored:
        """Return the record of a storage that an operation reads."""
        try:
            return storage._iotwin_dtr
        except AttributeError:
            return self.adopt(storage, counted=self.device.is_gpu)

    def adopt(self, storage: UntypedStorage, counted: bool = False) -> Stored:
        """Begin to track a storage. `counted`: its bytes are part of `used` already, since a GPU had allocated them before."""
        stored = Stored(storage, self.dead.append)
        managed = storage.device == self.device.device
        stored.bytes = self.device.rounded(storage.nbytes()) if managed else storage.nbytes()
        stored.managed, stored.resident, stored.owner, stored.seen = managed, True, None, None
        storage._iotwin_dtr = stored
        self._storages.add(stored)
        if managed and not counted:
            self.used += stored.bytes
            if self.used > self.peak:
                self.reserve(0, "a tensor from outside")
        return stored

    def counted(self, storage: UntypedStorage) -> int:
        """Return the bytes that a storage takes from the budget while it is in memory: 0 if it is on another device."""
        stored = getattr(storage, "_iotwin_dtr", None)
        size = storage.nbytes() if stored is None else stored.bytes  # an evicted storage may have no bytes
        return self.device.rounded(size) if storage.device == self.device.device else 0

    def measure(self) -> int:
        """Return the bytes in use, without freed storages. On a GPU, they are those that the allocator counts."""
        self.settle_deaths()
        if self.device.unseen:
            self.used, self.device.unseen = self.device.allocated(), 0
        return self.used

    def end(self) -> None:
        """Forget all storages."""
        for stored in self._storages:
            storage = stored()
            if storage is not None:
                del storage._iotwin_dtr
        self._storages.clear()

    def settle_deaths(self) -> None:
        """Forget the storages that PyTorch has freed. Contents to which operations still refer can be computed again.

        PyTorch may free a storage in any thread, while this object is in use. So it was only put into `dead` at that time.
        """
        while self.dead:
            stored = self.dead.popleft()
            self._storages.discard(stored)
            if stored.managed and stored.resident:
                self.used -= stored.bytes
            value = stored.owner
            if value is not None:
                stored.owner = None
                if value.stored is stored:
                    self.lost(value)
                del value  # if nothing else refers to the value, its row is removed now
        if self.candidates.dead:
            self.candidates.bury()

    def lost(self, value: Value) -> None:
        """Note that a value no longer has a storage, or that its storage is about to be overwritten."""
        value.stored = value.kept = None
        if value.slot and self.candidates.state[value.slot] != EVICTED:
            self.candidates.evicted(value.slot)

    def resized(self, storages: list[Stored]) -> bool:
        """Note the sizes of storages that an operation may have changed. Return True if it has changed one."""
        before = self.used
        for stored in storages:
            if stored.managed:
                size = self.device.rounded(stored.storage().nbytes())
                self.used += size - stored.bytes
                stored.bytes = size
        if self.used > before:
            self.reserve(0, "a storage that grew")
        return self.used != before

    def content(self, stored: Stored) -> Value:
        """Return the content of a storage: a new value that cannot be computed again if no operation on the storage is known."""
        value = stored.value
        if value is None:
            value = Value(stored.bytes)
            value.stored, stored.seen = stored, weakref.ref(value)
        return value

    def release_dropped(self) -> bool:
        """Free storages that only the runtime keeps. Return False if there are none."""
        return False

    def reserve(self, size: int, purpose: Any, spare: int = 0) -> None:
        """Evict until `size` bytes fit into the budget, if possible `spare` more. Raises BudgetError if `size` does not fit."""
        self.settle_deaths()
        device = self.device
        if self.used + device.unseen + size + spare > self.limit:
            self.measure()
        self.least = max(self.least, self.used - self.candidates.evictable_bytes + size)
        size += device.unseen
        while self.used + size + spare > self.limit:
            self.settle_deaths()
            victim = self.candidates.choose(self.clock)
            if victim is not None:
                self._evict(victim)
            elif self.used + size <= self.limit:
                break
            elif not self.release_dropped():
                raise BudgetError(
                    f"a memory budget of {self.budget} bytes cannot be kept: {purpose} needs {size} bytes, besides {self.used} "
                    "that cannot be evicted",
                    self.least,
                )
        self.peak = max(self.peak, self.used + size)
        device.unseen += device.spare(size)

    def reserve_for(self, plan: AllocationPlan, func: Any) -> None:
        """Make room for a call and, if it is the first of its kind, for what its kernels might take for themselves."""
        self.reserve(plan.bytes, func, _FIRST_CALL_BYTES if self.device.is_gpu and not plan.calls else 0)

    def fits(self, plan: AllocationPlan, locked_bytes: int) -> bool:
        """Return True if a call fits without an eviction.

        `locked_bytes`: bytes of values that could be evicted if the call did not read them.
        """
        total = self.used + plan.bytes
        if total + self.device.unseen > self.limit or (self.device.is_gpu and not plan.calls):
            return False
        if total > self.peak:
            self.peak = total
        if total - self.candidates.evictable_bytes + locked_bytes > self.least:
            self.least = total - self.candidates.evictable_bytes + locked_bytes
        return True

    def _evict(self, value: Value) -> None:
        stored = value.holder
        if self.offload is not None and value.saved is None:
            self._save(value, stored, self.offload)
        if stored.owner is not value:
            self.lost(value)  # only the runtime referred to the value, so its storage is freed with this reference
        elif stored.evict():
            self.used -= stored.bytes
            self.candidates.evicted(value.slot)
        else:
            return  # it was freed
        self.evictions += 1

    def _save(self, value: Value, stored: Stored, offload: OffloadFile) -> None:
        """Save a value that is about to be evicted, if writing and reading it is faster than computing it again."""
        storage = stored()
        size = value.bytes
        if storage is None or offload.save_ns(size) + offload.load_ns(size) >= self.candidates.recompute_ns(value.slot):
            return
        value.saved = offload.save(storage)
        if value.saved is not None:
            self.candidates.cost[value.slot] = round(offload.load_ns(size))  # it can now be read back
