"""The contents of storages, and the operations that computed them.

A storage of PyTorch holds one `Value` at a time. If an operation writes into the storage, it then holds another value. A value
whose bytes are not in memory is computed again from the values that its operation read.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, UntypedStorage

# Newer versions of PyTorch can exchange the memory of two storages. With older ones, an evicted storage has no bytes at all, and
# a recomputed content is copied into it. For this, two copies must fit into memory.
CAN_SWAP = hasattr(UntypedStorage, "_swap_data_ptr_")
# Returns the storage of a tensor. Unlike the method `untyped_storage`, it does not pin the tensor within a budget (`session`).
storage_of = torch._C.TensorBase.untyped_storage
# An address that no process may read, on any 64-bit processor and on GPUs. A read of it ends the process at once, instead of
# returning wrong numbers. Bit 55 is neither part of a process's addresses nor one of the bits that ARM ignores.
NOWHERE = 1 << 55


class Value:
    """The content of a storage between two writes. `operation` computes it. If that is None, the value is never evicted."""

    __slots__ = ("__weakref__", "bytes", "graph", "kept", "locks", "operation", "output", "saved", "slot", "stored", "users")

    def __init__(self, size: int, operation: "Operation | None" = None, output: int = -1) -> None:
        self.bytes = size
        self.operation = operation
        self.output = output  # its index among the results and modified arguments of the operation
        self.stored: Stored | None = None  # the storage that holds it, or held it before its eviction
        self.kept: UntypedStorage | None = None  # keeps the storage alive although the program dropped it
        self.saved: Any = None  # its `SavedCopy` in a file, if it was evicted to one
        self.locks = 0  # operations that are about to read it
        self.users: list[weakref.ref[Operation]] = []  # the recorded operations that read it
        self.slot = 0  # its row in `graph`; 0 if it has none
        self.graph: Any = None

    @property
    def holder(self) -> "Stored":
        """The storage that holds it."""
        if self.stored is None:
            raise RuntimeError("a value is used that is not in memory")
        return self.stored

    @property
    def resident(self) -> bool:
        """True if its bytes are in memory."""
        stored = self.stored
        return stored is not None and stored.resident and stored() is not None

    def forget(self) -> None:
        """Remove the operation that computes this value. Since the value can no longer be recomputed, it is never evicted."""
        if self.slot:
            self.graph.remove(self.slot)
            self.slot = 0
        self.operation = None

    def __del__(self) -> None:
        if self.slot:
            self.graph.dead.append(self.slot)  # this may be any thread, and only one may change the graph


class Operation:
    """An operation that ran, with all that is needed to run it again."""

    __slots__ = ("__weakref__", "func", "gradients", "inputs", "outputs", "plan", "random_state", "tensors", "written")

    def __init__(self, func: Any, plan: Any, inputs: list[Value], tensors: list[tuple[int, int]], random_state: Any) -> None:
        self.func = func
        self.plan = plan  # its `AllocationPlan`, which has the other arguments
        self.inputs = inputs
        self.tensors = tensors  # for each tensor that it reads: the index in `inputs`, and the offset in the storage
        self.random_state: Tensor | None = random_state  # state of the generator before it ran
        self.gradients = torch.is_grad_enabled()  # some kernels return fewer results if no gradients are needed
        self.written: list[int] = []  # which of `inputs` it modifies
        # Computed values: for each storage of the results in order, then for each modified input. None: not of interest.
        self.outputs: list[weakref.ref[Value] | None] = []

    def results(self) -> "list[Value]":
        """Return the computed values that are recorded and still exist."""
        found = (reference() for reference in self.outputs if reference is not None)
        return [value for value in found if value is not None]


class Stored(weakref.ref[UntypedStorage]):
    """A weak reference to a storage of PyTorch that an operation has touched. It is stored as an attribute of that storage."""

    __slots__ = ("bytes", "managed", "owner", "resident", "seen")
    bytes: int  # size of its allocation
    managed: bool  # is on the device that the budget limits
    resident: bool
    owner: Value | None  # the content if it can be computed again. The storage keeps this value and its operation alive
    seen: weakref.ref[Value] | None  # the content otherwise. Only operations keep this value alive
    __hash__, __eq__ = object.__hash__, object.__eq__

    @property
    def value(self) -> Value | None:
        """The content of the storage, if any operation that can be repeated has read or computed it."""
        return self.owner or (self.seen() if self.seen is not None else None)

    def storage(self) -> UntypedStorage:
        """Return the storage, which must be alive."""
        found = self()
        if found is None:
            raise RuntimeError("a storage is used after PyTorch freed it")
        return found

    def evict(self) -> bool:
        """Free the memory. Tensors on the storage keep their shape, but have no data. Return False if PyTorch freed it before."""
        storage = self()
        if storage is None:
            return False
        if CAN_SWAP:
            storage._swap_data_ptr_(torch._C._construct_storage_from_data_pointer(NOWHERE, storage.device, storage.nbytes()))
        else:
            storage.resize_(0)
        self.resident = False
        return True

    def fill(self, content: UntypedStorage) -> bool:
        """Bring the storage back to memory, with the content of another storage of the same size. The other one is then unusable.

        Return False if PyTorch freed this storage before.
        """
        storage = self()
        if storage is None:
            return False
        if CAN_SWAP:
            storage._swap_data_ptr_(content)
        else:
            storage.resize_(content.nbytes())
            storage.copy_(content)
        self.resident = True
        return True
