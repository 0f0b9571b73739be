"""Brings evicted values back to memory, and prepares for writes into what they were computed from."""

import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import UntypedStorage

from iotwin.common.progress import note
from iotwin.workloads.dtr.live.device_memory import DeviceMemory
from iotwin.workloads.dtr.live.memory import BudgetError, DtrMemory
from iotwin.workloads.dtr.live.operations import AllocationPlan, AllocationPlans
from iotwin.workloads.dtr.live.replay import run_again
from iotwin.workloads.dtr.live.values import CAN_SWAP, Operation, Stored, Value
from iotwin.workloads.dtr.simulator.heuristics import Heuristic

# Content of up to this size is copied before it is overwritten, if something that was computed from it can be evicted: the
# running means of batch normalisation, for example. Larger content is copied only if `before_write` cannot avoid it.
_COPIED_BYTES = 1 << 16
# How often inputs in memory may be unlocked, so that they can be evicted, while the inputs of one operation are computed again.
# The limit ends a computation that makes no progress.
_MOST_UNLOCKED = 100


class _WaitingOperation:
    """An operation whose inputs are brought to memory. They are locked, except `unlocked`, which may be evicted meanwhile.

    `operation`: the operation to run again once its inputs are in memory; None for the one that the program has called.
    """

    def __init__(self, operation: Operation | None, inputs: list[Value]) -> None:
        self.operation, self.inputs, self.unlocked = operation, inputs, list[Value]()

    def first_missing(self) -> Value | None:
        return next((value for value in self.inputs if not value.resident), None)


class Rematerializer(DtrMemory):
    """Brings values to memory: recomputes evicted ones, and prepares for writes into values from which others were computed."""

    def __init__(self, budget: int, heuristic: Heuristic, device: torch.device, **choice: Any) -> None:
        super().__init__(budget, heuristic, device, **choice)
        self.rematerializations = 0
        self.base_ns = 0  # time of all operations
        self.remat_ns = 0  # time of operations that ran again
        self.plans = _plans(self.device.device)
        self.latest: AllocationPlan | None = None  # the plan of the latest call
        self._releasing = False

    def timed(self, plan: AllocationPlan, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a call and return its result."""
        result, spent_ns = self.device.timed(plan, func, args, kwargs)
        self.base_ns += spent_ns
        self.latest = plan
        self.clock += plan.cost_ns
        return result

    def release_dropped(self) -> bool:
        """Free storages that only the runtime keeps. Return False if there are none.

        Values computed from them are never evicted again. An example is the batch of an earlier step, if gradients that were
        computed from this batch are still needed.
        """
        if self._releasing:
            return False
        self._releasing, before = True, self.used
        try:
            for stored in list(self._storages):
                value = stored.value if stored.owner is None and stored.managed else None
                if value is None or value.operation is not None or value.kept is None or value.locks:
                    continue
                if torch._C._storage_Use_Count(value.kept._cdata) <= _USED_BY_RUNTIME:
                    self._keep_dependants(value)
        except BudgetError:
            pass  # the values computed from it do not fit
        finally:
            self._releasing = False
        return self.used < before

    @contextmanager
    def held(self, values: list[Value]) -> Iterator[None]:
        """While the block runs, keep `values` in memory. Those that were evicted are computed again first."""
        self.acquire(values)
        try:
            yield
        finally:
            self.release(values)

    def acquire(self, values: list[Value]) -> None:
        """Bring `values` to memory, and keep them there until they are released.

        An evicted value is computed again. Before that, its evicted inputs are computed again, and so on.
        """
        self._lock(values)
        waiting, rest = [_WaitingOperation(None, values)], _MOST_UNLOCKED
        try:
            while (missing := waiting[-1].first_missing()) or len(waiting) > 1:
                least = self.least
                try:
                    self._go_on(waiting, missing)
                except BudgetError as error:
                    if not self._unlock_all_but_last(waiting):
                        raise
                    self.least = least  # the inputs of waiting operations need not be in memory
                    rest -= 1
                    if not rest:
                        raise BudgetError(f"{error.reason}, as inputs that wait for it evict one another", least) from None
        except BaseException:
            for each in waiting:
                self.release([value for value in each.inputs if value not in each.unlocked])
            raise

    def _go_on(self, waiting: list[_WaitingOperation], missing: Value | None) -> None:
        """Take one step for the last operation: load its input `missing`, or append the operation that computes this input.

        If `missing` is None, the last operation has all its inputs; run it again.
        """
        last = waiting[-1]
        if missing is None:
            if last.operation is not None and self._repeat(last.operation):
                self.release(waiting.pop().inputs)
                self._lock(waiting[-1].unlocked)
                waiting[-1].unlocked = []
        elif missing.saved is not None:
            self._load(missing)
        elif missing.operation is not None:
            self._lock(missing.operation.inputs)
            waiting.append(_WaitingOperation(missing.operation, missing.operation.inputs))
        else:
            raise RuntimeError("a value is missing that no operation computes")

    def _unlock_all_but_last(self, waiting: list[_WaitingOperation]) -> bool:
        """Allow the eviction of the inputs of all operations but the last. Return False if no input can be evicted for that.

        Inputs that are then evicted are computed once more, after the operation that needs their memory now.
        """
        found = False
        for each in waiting[:-1]:
            unlocked = [value for value in each.inputs if value.slot and value.resident and value not in each.unlocked]
            self.release(unlocked)
            each.unlocked += unlocked
            found = found or any(not value.locks for value in unlocked)
        return found

    def _lock(self, values: list[Value]) -> None:
        for value in values:
            value.locks += 1
            if value.slot:
                self.candidates.accessed[value.slot] = self.clock
                if value.locks == 1 and value.resident:
                    self.candidates.lock(value.slot)

    def release(self, values: list[Value]) -> None:
        """Allow the eviction of `values` again."""
        for value in values:
            value.locks -= 1
            if value.slot and not value.locks and value.resident:
                self.candidates.unlock(value.slot)

    def _load(self, value: Value) -> None:
        """Read an evicted value back from the file."""
        copied = 0 if CAN_SWAP or value.stored is None else value.bytes
        self.reserve(value.bytes + copied, "a saved tensor")
        try:
            content = value.saved.read(self.device.device)
        except OSError as error:
            note(f"an evicted tensor is computed again, as its file cannot be read: {error.strerror}")
            value.saved = None
        else:
            self._place(value, content, None)

    def _repeat(self, operation: Operation) -> bool:
        """Run an operation again, whose inputs are in memory. Keep those of its results that are evicted and may still be read.

        Return False if the program dropped an input meanwhile: that input must be computed first.
        """
        wanted = [
            value
            for value in operation.results()
            if not value.resident and (value.locks or (value.stored is not None and value.stored.owner is value))
        ]
        plan = operation.plan
        modified = [operation.inputs[index] for index in operation.written]
        cloned = sum(value.bytes for value in modified if not _may_be_overwritten(value))
        copied = 0 if CAN_SWAP else sum(value.bytes for value in wanted if value.stored is not None)
        self.reserve(plan.bytes + cloned + copied, operation.func)
        taken = {id(value): value.stored for value in modified if _may_be_overwritten(value)}
        held = [value.stored() if value.stored is not None else None for value in operation.inputs]
        storages = [storage for storage in held if storage is not None]
        if len(storages) < len(held):
            self.settle_deaths()
            return False
        for index, value in zip(operation.written, modified, strict=True):
            if id(value) in taken:
                value.holder.seen = None
                self.lost(value)
            else:
                storages[index] = storages[index].clone()
        made, spent_ns = run_again(operation, storages, self.device)
        self.rematerializations += 1
        self.remat_ns += spent_ns
        self.clock += plan.cost_ns
        holders = [None] * len(made) + [taken.get(id(value)) for value in modified]
        results = [*made, *(storages[index] for index in operation.written)]
        for value in wanted:
            self._place(value, results[value.output], holders[value.output])
        return True

    def _place(self, value: Value, content: UntypedStorage, holder: Stored | None) -> None:
        """Put a recomputed result into the value's storage. If the program dropped that storage, keep the result's own one.

        `content`: the result's storage. `holder`: the record of this storage if its bytes are part of `used`, else None.
        """
        stored = value.stored
        if stored is not None and stored.fill(content):  # the program holds the storage
            self.used += stored.bytes
            if holder is not None:
                self.used -= holder.bytes
                holder.resident = False
        else:
            holder = holder or self.adopt(content)
            holder.seen, value.stored, value.kept = weakref.ref(value), holder, content
        self.candidates.computed(value.slot, locked=value.locks > 0)
        self.candidates.accessed[value.slot] = self.clock

    def access(self, inputs: list[Stored]) -> int:
        """Note that an operation is about to read storages; return how many of their bytes can be evicted.

        Return -1 if one of them is not in memory.
        """
        accessed, clock = self.candidates.accessed, self.clock
        total, resident = 0, True
        for stored in inputs:
            value = stored.owner
            if value is not None:
                accessed[value.slot] = clock
                total += value.bytes
                resident = resident and stored.resident
        return total if resident else -1

    def needs_preparation(self, stored: Stored, read_again: bool) -> bool:
        """Return True if `before_write` must be called before an operation writes to the storage."""
        if stored.owner is not None:
            return False
        value = stored.value
        return read_again or (value is not None and any(reference() is not None for reference in value.users))

    def before_write(self, stored: Stored, read_again: bool) -> None:
        """Prepare for an operation that overwrites content that nothing can compute again.

        If a value computed from this content can be evicted, either the content is copied, or such values are never evicted
        again. `read_again`: results of the operation itself can be evicted, and were computed from this content.
        """
        value = stored.value
        if value is None or value.operation is not None:
            return
        if value.bytes > _COPIED_BYTES and not read_again:
            self._keep_dependants(value)
        if read_again or any(reference() is not None for reference in value.users):
            self._copy(value, stored)

    def _copy(self, value: Value, stored: Stored) -> None:
        """Copy a value, whose storage is about to be overwritten, to a separate storage."""
        self.reserve(stored.bytes if stored.managed else 0, "a copy of content that is overwritten")
        copy = stored.storage().clone()
        value.kept, value.stored = copy, self.adopt(copy)
        value.stored.seen, stored.seen = weakref.ref(value), None

    def keep_dependants(self, stored: Stored) -> None:
        """Bring all values that were computed from a storage and that the program holds to memory, and never evict them again."""
        value = stored.value
        if value is not None and stored.owner is None:
            self._keep_dependants(value)

    def _keep_dependants(self, value: Value) -> None:
        """Bring all values that were computed from `value` and that the program holds to memory, and never evict them again."""
        found, waiting, seen = [], [value], {value}
        while waiting:
            for reference in waiting.pop().users:
                operation = reference()
                for result in operation.results() if operation is not None else ():
                    if result not in seen:
                        seen.add(result)
                        waiting.append(result)
                        if result.stored is not None and result.stored.owner is result:
                            found.append(result)
        for one in sorted(found, key=lambda value: value.resident):  # evicted values first, while the others can still be evicted
            if one.stored is not None and one.stored.owner is one and one.stored() is not None:
                with self.held([one]):
                    self._make_constant(one)

    def _make_constant(self, value: Value) -> None:
        """Remove the operation that computes a value in memory, so that the value is never evicted again."""
        stored = value.stored
        kept = stored() if stored is not None else None
        if stored is not None and kept is not None:
            stored.owner, stored.seen, value.kept = None, weakref.ref(value), kept
            value.forget()

    def pin(self, stored: Stored) -> None:
        """Bring the content of a storage to memory, and never evict it again."""
        if stored.owner is not None:
            value = stored.owner
            with self.held([value]):
                self._make_constant(value)

    def pin_all(self) -> None:
        """Bring all values that the program holds to memory, beyond the budget if necessary, and never evict them again."""
        self.settle_deaths()
        for stored in list(self._storages):
            try:
                self.pin(stored)
            except BudgetError:
                self.limit = math.inf
                self.pin(stored)

    def overwritten(self, written: list[Stored]) -> None:
        """Note that an operation has overwritten the contents of storages."""
        for stored in written:
            old = stored.owner
            if old is not None:
                stored.owner = None
                self.lost(old)
            stored.seen = None

    def computed_by(self, operation: Operation, results: list[Stored], wanted: list[Stored]) -> None:
        """Set the contents of the storages that an operation made or wrote. `wanted`: those that it can compute again."""
        parents = [one.slot for one in operation.inputs if one.slot]
        for stored in results:
            if stored not in wanted:
                operation.outputs.append(None)
                continue
            value = Value(stored.bytes, operation, len(operation.outputs))
            value.stored, stored.owner = stored, value
            reference = weakref.ref(value)
            operation.outputs.append(reference)
            self.candidates.add(value, reference, operation.plan.cost_ns, parents, self.clock)


def _may_be_overwritten(value: Value) -> bool:
    """Return True if only the runtime holds a value, and it can be computed again."""
    return value.operation is not None and value.locks == 1 and value.stored is not None and value.stored.owner is None


@cache
def _plans(device: torch.device) -> AllocationPlans:
    return AllocationPlans(DeviceMemory(device))


_USED_BY_RUNTIME = 1  # the use count of a storage that only an object of Python refers to
