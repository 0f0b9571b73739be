"""Properties of PyTorch operations before they run: what they modify, whether they are random, how many bytes they allocate."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only

from iotwin.workloads.dtr.live.values import storage_of

# Arguments that an operation modifies although its schema does not name them: (names, position of the flag `training`).
_BATCH_NORM = (("running_mean", "running_var"), 5)
_UNDECLARED = {"native_batch_norm": _BATCH_NORM, "cudnn_batch_norm": _BATCH_NORM, "miopen_batch_norm": _BATCH_NORM}
# Namespaces of operations that modify or send their arguments while the program continues.
_ASYNCHRONOUS = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
# Operations on a GPU that may return other bits when they are computed again: their result depends on the order in which threads
# add (as PyTorch documents for torch.use_deterministic_algorithms, and flash attention for its gradients), or cuDNN keeps a
# hidden random state.
_NOT_REPEATABLE_ON_GPU = {
    "_cudnn_rnn", "_cudnn_rnn_backward", "_cudnn_init_dropout_state", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward", "bincount", "cumsum",
    "embedding_dense_backward", "_embedding_bag_dense_backward", "_efficient_attention_backward", "_flash_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward", "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_flash_attention_backward", "grid_sampler_2d_backward", "grid_sampler_3d_backward",
    "index_add", "index_add_", "index_put", "index_put_", "kthvalue", "max_unpool2d", "median",
    "max_pool3d_with_indices_backward", "put_", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "replication_pad2d_backward", "scatter_add", "scatter_add_", "scatter_reduce", "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward", "upsample_linear1d_backward", "upsample_trilinear3d_backward", "_ctc_loss_backward",
    "_cudnn_ctc_loss",
}  # fmt: skip
# The result is a sum or mean, but its storage is as large as that of all elements. On tensors without data, it is small.
_REDUCED_IN_STORAGE = {"binary_cross_entropy", "mse_loss", "smooth_l1_loss", "soft_margin_loss"}
# Results up to this size, such as losses and counters, are never evicted: the record of how to compute them is larger.
TINY_BYTES = 1024
_LARGEST_INDEX = 8  # bytes of an element of an index tensor


@dataclass(frozen=True, slots=True)
class Facts:
    """The properties of an operation that its arguments do not change."""

    func: Any
    view: bool  # returns a view of its argument, and reads no data
    reshapes: bool  # changes shape or storage of its argument in place
    written: tuple[tuple[int, str], ...]  # the arguments that it modifies: position and name
    resizes: bool  # enlarges an argument in `written` that is too small
    makes: bool  # returns more than the arguments that it modifies
    training_flag: int  # position of the argument without which it modifies nothing; -1 if there is none
    random: bool
    pins: bool  # may keep its arguments, or give them another storage
    repeatable: tuple[bool, bool]  # whether equal arguments give equal bits: on a CPU, on a GPU

    def modified(self, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that a call with these arguments modifies."""
        if not self.written or (self.training_flag >= 0 and not _argument(args, kwargs, self.training_flag, "training")):
            return []
        return tensors_in([_argument(args, kwargs, position, name) for position, name in self.written])


# The facts of operations by their id(): to hash an operation calls a Python function, which is slow.
known_facts: dict[int, Facts] = {}


def facts_of(func: Any) -> Facts:
    """Return the facts of an operation of `torch.ops`."""
    return known_facts.get(id(func)) or _new_facts(func)


def _new_facts(func: Any) -> Facts:
    """Find the facts of an operation, from its schema and its tags, and add them to `known_facts`."""
    schema, tags = func._schema, func.tags
    name = schema.name.partition("::")[2]
    written = [
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    flag = -1
    if name in _UNDECLARED and not written:
        names, flag = _UNDECLARED[name]
        written = [(position, a.name) for position, a in enumerate(schema.arguments) if a.name in names]
    aliased = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.returns)
    repeatable = torch.Tag.nondeterministic_bitwise not in tags
    known_facts[id(func)] = facts = Facts(
        func=func,
        view=aliased and not written and torch.Tag.inplace_view not in tags,
        reshapes=torch.Tag.inplace_view in tags,
        written=tuple(written),
        resizes=any(argument.is_out for argument in schema.arguments),
        makes=any(value.alias_info is None or not value.alias_info.is_write for value in schema.returns),
        training_flag=flag,
        random=torch.Tag.nondeterministic_seeded in tags,
        repeatable=(repeatable, repeatable and name not in _NOT_REPEATABLE_ON_GPU),
        pins=torch.Tag.inplace_view in tags or schema.name.partition("::")[0] in _ASYNCHRONOUS,
    )
    return facts


def _argument(args: Any, kwargs: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if position < len(args) else kwargs.get(name)


def tensors_in(values: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among `values` and in their lists and tuples, in order."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += tensors_in(value)
    return found


class Argument:
    """A tensor among an operation's arguments: its index among the tensors that the operation reads, its type and its shape."""

    __slots__ = ("dtype", "number", "size", "stride")

    def __init__(self, number: int, tensor: Tensor) -> None:
        self.number, self.dtype, self.size, self.stride = number, tensor.dtype, tensor.size(), tensor.stride()

    def on(self, storage: UntypedStorage, offset: int) -> Tensor:
        """Return a tensor of this type and shape on another storage."""
        return torch.empty(0, dtype=self.dtype, device=storage.device).set_(storage, offset, self.size, self.stride)


class AllocationPlan:
    """What calls of an operation with the same shapes and options have in common."""

    __slots__ = ("args", "bytes", "calls", "cost_ns", "fresh_bytes", "kwargs", "spare_bytes", "workspace_bytes")

    def __init__(self, fresh_bytes: int, spare_bytes: int) -> None:
        self.fresh_bytes = fresh_bytes  # bytes of the storages that it allocates for its results
        self.spare_bytes = spare_bytes  # the most by which its allocations can exceed `fresh_bytes` (`DeviceMemory.spare`)
        self.workspace_bytes = 0  # most bytes that its kernels allocate for themselves, and free before it returns
        self.bytes = fresh_bytes + spare_bytes  # the sum of all three
        self.cost_ns = 0  # the shortest time that a call took so far
        self.calls = 0
        self.args: Any = None  # its arguments, with an `Argument` in place of each tensor; None: not known yet
        self.kwargs: dict[str, Any] = {}

    def allocates_besides(self, size: int) -> None:
        """Note that a call allocated `size` bytes in addition to its results."""
        if size > self.workspace_bytes:
            self.bytes += size - self.workspace_bytes
            self.workspace_bytes = size

    def keep_arguments(self, args: Any, kwargs: dict[str, Any]) -> None:
        """Store the arguments of a call, for calls that repeat it."""
        read: list[Argument] = []
        self.args = _without_tensors(args, read)
        self.kwargs = dict(zip(kwargs, _without_tensors(kwargs.values(), read), strict=True))


def _without_tensors(values: Any, read: list[Argument]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            read.append(Argument(len(read), value))
            found.append(read[-1])
        else:
            found.append(_without_tensors(value, read) if isinstance(value, (list, tuple)) else value)
    return found


class AllocationPlans:
    """Finds the `AllocationPlan` of a call on a device, whose allocator `rounded` and `spare` describe (`DeviceMemory`)."""

    def __init__(self, device: Any) -> None:
        self._plans: dict[Any, AllocationPlan] = {}
        self._device = device
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def find(self, signature: list[Any], func: Any, args: Any, kwargs: dict[str, Any], read: list[Tensor]) -> AllocationPlan:
        """Return the plan of a call that reads the tensors `read`; calls with an equal signature share it."""
        key = tuple(signature)
        try:
            plan = self._plans.get(key)
        except TypeError:  # an argument that cannot be hashed
            return self._new(func, args, kwargs, read)
        if plan is None:
            plan = self._plans[key] = self._new(func, args, kwargs, read)
        return plan

    def _new(self, func: Any, args: Any, kwargs: dict[str, Any], read: list[Tensor]) -> AllocationPlan:
        sizes = self._fresh_bytes(func, args, kwargs, read)
        return AllocationPlan(sum(map(self._device.rounded, sizes)), sum(map(self._device.spare, sizes)))

    def _fresh_bytes(self, func: Any, args: Any, kwargs: dict[str, Any], read: list[Tensor]) -> list[int]:
        """Run the operation on tensors without data, and return the sizes of the storages that it makes on the device."""
        if not facts_of(func).makes:
            return []
        try:
            with self._fake:
                known: dict[int, Tensor] = {}
                fake = {id(tensor): _without_data(tensor, known) for tensor in read}
                given = {storage_of(tensor)._cdata for tensor in fake.values()}
                device = self._device.device
                args, kwargs = tree_map_only(Tensor, lambda tensor: fake[id(tensor)], (args, kwargs))
                if func._schema.name.partition("::")[2] in _REDUCED_IN_STORAGE:
                    named = zip((argument.name for argument in func._schema.arguments), args, strict=False)
                    args, kwargs = (), {**dict(named), **kwargs, "reduction": 0}
                result = func(*args, **kwargs)
                made = {storage_of(t)._cdata: t for t in tensors_in((result,)) if t.device.type == device.type}
                return [storage_of(t).nbytes() for key, t in made.items() if key not in given]
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException, NotImplementedError):
            # An upper limit for shapes that depend on data.
            return [t.numel() * max(_LARGEST_INDEX * max(t.dim(), 1), 16 + t.element_size()) for t in read]
        except Exception:
            return []  # the arguments are wrong: the operation itself raises an error


def _without_data(tensor: Tensor, known: dict[int, Tensor]) -> Tensor:
    """Return a fake tensor with the shape of `tensor`. Tensors that share a storage (`known`) share it again."""
    storage = storage_of(tensor)
    whole = known.get(storage._cdata)
    if whole is None:
        whole = known[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(storage_of(whole), tensor.storage_offset(), tensor.size(), tensor.stride())


_PLAIN_TYPES = {Tensor, torch.nn.Parameter, torch.nn.Buffer}
_UNUSUAL_TYPES = {  # complex and quantized numbers
    torch.complex32, torch.complex64, torch.complex128, torch.qint8, torch.quint8, torch.qint32, torch.quint4x2, torch.quint2x4,
}  # fmt: skip
_strided = torch.strided


def is_plain(tensor: Tensor) -> bool:
    """Return True if a tensor is an ordinary strided view of a storage, with no pending conjugation or negation."""
    if tensor.__class__ not in _PLAIN_TYPES or tensor.layout is not _strided or tensor.is_neg():
        return False
    return tensor.dtype not in _UNUSUAL_TYPES or not (tensor.is_quantized or tensor.is_conj())


def signed(values: Iterable[Any], read: list[Tensor], signature: list[Any]) -> bool:
    """Return True if `signature` determines the sizes of the operation's results.

    Adds every tensor in `values` to `read`. Adds the tensors' devices, types, shapes and strides to `signature`, and all other
    values. Returns False if a tensor is no ordinary strided tensor (`is_plain`).
    """
    plain = True
    for value in values:
        kind = value.__class__
        if kind is int or value is None:
            signature.append(value)
        elif kind in _PLAIN_TYPES:
            read.append(value)
            dtype = value.dtype
            if value.layout is not _strided or value.is_neg() or (dtype in _UNUSUAL_TYPES and not is_plain(value)):
                plain = False
            else:
                signature += (value.device, dtype, value.size(), value.stride())
        elif kind is list or kind is tuple:
            signature.append(len(value))
            plain = signed(value, read, signature) and plain
        elif isinstance(value, Tensor):
            read.append(value)
            plain = False
        else:  # 1, 1.0 and True are equal, and so are 0.0 and -0.0; nan does not equal itself
            signature.append(kind)
            signature.append(str(value) if kind is complex or (kind is float and not value * value > 0) else value)
    return plain
