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
# An address that no process may read, on any processor of 64 bits and on GPUs: reading it ends the process at once, rather than
# giving wrong numbers. Bit 55 belongs neither to a user's addresses nor to the bits that ARM ignores.
_NOWHERE = 1 << 55


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
        return self.stored is not None and self.stored.resident and self.stored.alive

    def forget(self) -> None:
        """Forget how to compute it, so that it is never evicted."""
        if self.slot:
            self.graph.remove(self.slot)
            self.slot = 0
        self.operation = None

    def __del__(self) -> None:
        if self.slot:
            self.graph.remove(self.slot)


class Argument:
    """A tensor among the recorded arguments of an operation: a view of one of the values that it reads."""

    __slots__ = ("dtype", "index", "offset", "size", "stride")

    def __init__(self, index: int, tensor: Tensor) -> None:
        self.index = index  # in `Operation.inputs`
        self.dtype, self.size, self.stride = tensor.dtype, tensor.size(), tensor.stride()
        self.offset = tensor.storage_offset()

    def on(self, storage: UntypedStorage) -> Tensor:
        """Return the tensor on another storage."""
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, self.offset, self.size, self.stride)


class Operation:
    """An operation that ran, with all that is needed to run it again."""

    __slots__ = ("__weakref__", "args", "func", "gradients", "inputs", "kwargs", "outputs", "plan", "random_state", "written")

    def __init__(self, func: Any, inputs: list[Value], plan: Any) -> None:
        self.func = func
        self.inputs = inputs
        self.plan = plan
        self.args: Any = ()
        self.kwargs: dict[str, Any] = {}
        self.gradients = torch.is_grad_enabled()  # some kernels return less if no gradients are wanted
        self.random_state: Tensor | None = None  # of the generator before it ran
        self.written: list[int] = []  # which of `inputs` it modifies
        # What it computed: for each storage of its results in order, then for each input that it modifies. None: not of interest.
        self.outputs: list[weakref.ref[Value] | None] = []

    def results(self) -> "list[Value]":
        """Return those of its results that are of interest."""
        found = (reference() for reference in self.outputs if reference is not None)
        return [value for value in found if value is not None]


class Stored:
    """A storage of PyTorch that an operation has touched."""

    __slots__ = ("bytes", "managed", "owner", "reference", "resident", "seen")

    def __init__(self, storage: UntypedStorage, size: int, managed: bool, died: Any) -> None:
        self.reference = weakref.ref(storage, died)
        self.bytes = size  # that its allocation takes
        self.managed = managed  # it lies in the memory that the budget is for
        self.resident = True
        self.owner: Value | None = None  # the content, if it can be computed again: the storage keeps its history alive
        self.seen: weakref.ref[Value] | None = None  # the content otherwise; operations keep it alive

    @property
    def value(self) -> Value | None:
        """The content of the storage, if any operation that can be repeated has read or computed it."""
        return self.owner or (self.seen() if self.seen is not None else None)

    @property
    def alive(self) -> bool:
        """True until PyTorch frees the storage, which another thread may cause at any time."""
        return self.reference() is not None

    def storage(self) -> UntypedStorage:
        """Return the storage, which must be alive."""
        found = self.reference()
        if found is None:
            raise RuntimeError("a storage is used after PyTorch freed it")
        return found

    def evict(self) -> bool:
        """Free the memory. Tensors on the storage keep their shape, and point nowhere. Return False if it was freed before."""
        storage = self.reference()
        if storage is None:
            return False
        if CAN_SWAP:
            storage._swap_data_ptr_(torch._C._construct_storage_from_data_pointer(_NOWHERE, storage.device, storage.nbytes()))
        else:
            storage.resize_(0)
        self.resident = False
        return True

    def fill(self, content: UntypedStorage) -> bool:
        """Bring the storage back to memory, with the content of another one of the same size, which is of no use afterwards.

        Return False if PyTorch freed the storage before.
        """
        storage = self.reference()
        if storage is None:
            return False
        if CAN_SWAP:
            storage._swap_data_ptr_(content)
        else:
            storage.resize_(content.nbytes())
            storage.copy_(content)
        self.resident = True
        return True
