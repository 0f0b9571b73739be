"""The contents of storages, and the operations that computed them.

A storage of PyTorch holds one `Value` at a time. An operation that writes into the storage gives it another one. A value whose
bytes are not in memory is computed again from the values that its operation read.
"""

import weakref
from typing import Any

import torch
from torch import Tensor, UntypedStorage

# Newer versions of PyTorch can exchange the memory of two storages. With older ones, an evicted storage has no bytes at all, and
# its content is copied back, for which both must fit into memory.
CAN_SWAP = hasattr(UntypedStorage, "_swap_data_ptr_")
# Returns the storage of a tensor. The method `untyped_storage` also pins it within a budget (`session`).
storage_of = torch._C.TensorBase.untyped_storage
# An address that no process may read, on any processor of 64 bits and on GPUs: reading it ends the process at once, rather than
# giving wrong numbers. Bit 55 belongs neither to a user's addresses nor to the bits that ARM ignores.
NOWHERE = 1 << 55


class Value:
    """The content of a storage between two writes. `operation` computes it; None if nothing can, so that it is never evicted."""

    __slots__ = ("__weakref__", "bytes", "graph", "kept", "locks", "operation", "output", "saved", "slot", "stored", "users")

    def __init__(self, size: int, operation: "Operation | None" = None, output: int = -1) -> None:
        self.bytes = size
        self.operation = operation
        self.output = output  # its index among the results and modified arguments of the operation
        self.stored: Stored | None = None  # the storage that holds it, or held it before its eviction
        self.kept: UntypedStorage | None = None  # keeps the storage alive although the program dropped it
        self.saved: Any = None  # its `SavedCopy` in a file, if it was evicted to one
        self.locks = 0  # operations that are about to read it
        self.users: list[weakref.ref[Operation]] = []  # the operations that read it
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
        """Forget how to compute it, so that it is never evicted."""
        if self.slot:
            self.graph.remove(self.slot)
            self.slot = 0
        self.operation = None

    def __del__(self) -> None:
        if self.slot:
            self.graph.dead.append(self.slot)  # in any thread, which may not change the graph


class Operation:
    """An operation that ran, with all that is needed to run it again."""

    __slots__ = ("__weakref__", "func", "gradients", "inputs", "outputs", "plan", "random_state", "tensors", "written")

    def __init__(self, func: Any, plan: Any, inputs: list[Value], tensors: list[tuple[int, int]], random_state: Any) -> None:
        self.func = func
        self.plan = plan  # its `AllocationPlan`, which has the other arguments
        self.inputs = inputs
        self.tensors = tensors  # for each tensor that it reads: the index in `inputs`, and the offset in the storage
        self.random_state: Tensor | None = random_state  # state of the generator before it ran
        self.gradients = torch.is_grad_enabled()  # some kernels return less if no gradients are wanted
        self.written: list[int] = []  # which of `inputs` it modifies
        # Computed values: for each storage of the results in order, then for each modified input. None: not of interest.
        self.outputs: list[weakref.ref[Value] | None] = []

    def results(self) -> "list[Value]":
        """Return those of its results that are of interest."""
        found = (reference() for reference in self.outputs if reference is not None)
        return [value for value in found if value is not None]


class Stored(weakref.ref[UntypedStorage]):
    """A weak reference to a storage of PyTorch that an operation has touched. The storage has it as an attribute."""

    __slots__ = ("bytes", "managed", "owner", "resident", "seen")
    bytes: int  # size of its allocation
    managed: bool  # lies in the memory that the budget is for
    resident: bool
    owner: Value | None  # the content, if it can be computed again: the storage keeps its history alive
    seen: weakref.ref[Value] | None  # the content otherwise; operations keep it alive
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
        """Free the memory. Tensors on the storage keep their shape, and point nowhere. Return False if it was freed before."""
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
        """Bring the storage back to memory, with the content of another one of the same size, which is of no use afterwards.

        Return False if PyTorch freed the storage before.
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
