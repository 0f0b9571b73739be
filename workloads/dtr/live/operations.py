"""What is known of an operation of PyTorch before it runs: what it modifies, if it is random, how many bytes it allocates."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._pytree import tree_map_only

# Arguments that an operation modifies although its schema does not name them: (names, position of the flag `training`).
_BATCH_NORM = (("running_mean", "running_var"), 5)
_UNDECLARED = {"native_batch_norm": _BATCH_NORM, "cudnn_batch_norm": _BATCH_NORM, "miopen_batch_norm": _BATCH_NORM}
# Their operations modify or send their arguments while the program goes on.
_ASYNCHRONOUS = {"c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem"}
# Operations on a GPU that may return other bits when they are computed again: their result depends on the order in which threads
# add (as PyTorch documents for torch.use_deterministic_algorithms), or cuDNN keeps a hidden random state.
_NOT_REPEATABLE_ON_GPU = {
    "_cudnn_rnn", "_cudnn_rnn_backward", "_cudnn_init_dropout_state", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "avg_pool3d_backward", "bincount", "cumsum",
    "embedding_dense_backward", "_embedding_bag_dense_backward", "grid_sampler_2d_backward",
    "grid_sampler_3d_backward", "index_add", "index_add_", "index_put", "index_put_", "kthvalue", "max_unpool2d", "median",
    "max_pool3d_with_indices_backward", "put_", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "replication_pad2d_backward", "scatter_add", "scatter_add_", "scatter_reduce", "upsample_bicubic2d_backward",
    "upsample_bilinear2d_backward", "upsample_linear1d_backward", "upsample_trilinear3d_backward", "_ctc_loss_backward",
    "_cudnn_ctc_loss",
}  # fmt: skip
# Results up to this size, such as losses and counters, are never evicted: the record of how to compute them is larger.
TINY_BYTES = 1024
_LARGEST_INDEX = 8  # bytes of an element of an index tensor


@dataclass(frozen=True)
class Facts:
    """Facts of an operation, whatever its arguments are."""

    view: bool  # returns a view of its argument, and reads no data
    reshapes: bool  # changes shape or storage of its argument in place
    written: tuple[tuple[int, str], ...]  # the arguments that it modifies: position and name
    training_flag: int  # position of the argument without which it modifies nothing; -1 if there is none
    random: bool
    pins: bool  # it may keep its arguments, or give them another storage
    repeatable_on_cpu: bool
    repeatable_on_gpu: bool

    def repeatable(self, on_gpu: bool) -> bool:
        """Return True if the same arguments give the same bits."""
        return self.repeatable_on_gpu if on_gpu else self.repeatable_on_cpu

    def modified(self, args: Any, kwargs: dict[str, Any]) -> list[Tensor]:
        """Return the tensors that a call with these arguments modifies."""
        if not self.written or (self.training_flag >= 0 and not _argument(args, kwargs, self.training_flag, "training")):
            return []
        return tensors_in([_argument(args, kwargs, position, name) for position, name in self.written])


@cache
def facts_of(func: Any) -> Facts:
    """Return the facts of an operation of `torch.ops`, from its schema and its tags."""
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
    return Facts(
        view=aliased and not written,
        reshapes=torch.Tag.inplace_view in tags,
        written=tuple(written),
        training_flag=flag,
        random=torch.Tag.nondeterministic_seeded in tags,
        repeatable_on_cpu=repeatable,
        repeatable_on_gpu=repeatable and name not in _NOT_REPEATABLE_ON_GPU,
        pins=torch.Tag.inplace_view in tags or schema.name.partition("::")[0] in _ASYNCHRONOUS,
    )


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


@dataclass(frozen=True)
class OperatorCall:
    """A call of an operation. `read`: all tensors among its arguments, those that it modifies included."""

    func: Any
    facts: Facts
    args: Any
    kwargs: dict[str, Any]
    read: list[Tensor]


class AllocationPlan:
    """What calls of an operation with the same shapes have in common."""

    __slots__ = ("calls", "cost_ns", "fresh_bytes", "workspace_bytes")

    def __init__(self, fresh_bytes: int) -> None:
        self.fresh_bytes = fresh_bytes  # of the storages that it allocates for its results
        self.workspace_bytes = 0  # the most that it allocates besides, and frees before it returns
        self.cost_ns = 0  # the shortest time that a call took so far
        self.calls = 0


class AllocationPlans:
    """Finds the `AllocationPlan` of a call. `round_up` converts the size of a storage to the bytes that its allocation takes."""

    def __init__(self, round_up: Any) -> None:
        self._plans: dict[Any, AllocationPlan] = {}
        self._round_up = round_up
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)

    def find(self, call: OperatorCall, made_on: torch.device) -> AllocationPlan:
        """Return the plan of a call; calls of one operation with the same shapes and options share it."""
        signature = [call.func]
        _sign(call.args, signature)
        if call.kwargs:
            _sign(call.kwargs.items(), signature)
        key = tuple(signature)
        try:
            plan = self._plans.get(key)
        except TypeError:  # an argument that cannot be hashed
            return AllocationPlan(self._fresh_bytes(call, made_on))
        if plan is None:
            plan = self._plans[key] = AllocationPlan(self._fresh_bytes(call, made_on))
        return plan

    def _fresh_bytes(self, call: OperatorCall, made_on: torch.device) -> int:
        """Run the operation on tensors without data, and sum the storages that it makes on the device `made_on`."""
        func, read = call.func, call.read
        if not any(value.alias_info is None or not value.alias_info.is_write for value in func._schema.returns):
            return 0  # it returns nothing but what it modified
        try:
            with self._fake:
                known: dict[int, Tensor] = {}
                fake = {id(tensor): _without_data(tensor, known) for tensor in read}
                given = {tensor.untyped_storage()._cdata for tensor in fake.values()}
                args, kwargs = tree_map_only(Tensor, lambda tensor: fake[id(tensor)], (call.args, call.kwargs))
                result = func(*args, **kwargs)
                made = {t.untyped_storage()._cdata: t for t in tensors_in((result,)) if t.device.type == made_on.type}
                return sum(self._round_up(t.untyped_storage().nbytes()) for key, t in made.items() if key not in given)
        except (DataDependentOutputException, DynamicOutputShapeException, UnsupportedOperatorException, NotImplementedError):
            # An upper limit for shapes that depend on data.
            return sum(self._round_up(t.numel() * max(_LARGEST_INDEX * max(t.dim(), 1), 16 + t.element_size())) for t in read)
        except Exception:
            return 0  # the arguments are wrong: the operation itself raises an error


def _without_data(tensor: Tensor, known: dict[int, Tensor]) -> Tensor:
    """Return a fake tensor with the shape of `tensor`. Tensors that share a storage (`known`) share it again."""
    storage = tensor.untyped_storage()
    whole = known.get(storage._cdata)
    if whole is None:
        whole = known[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device=tensor.device)
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(whole.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def _sign(values: Iterable[Any], signature: list[Any]) -> None:
    """Append to `signature` what determines the sizes of results: devices, shapes and types of tensors, and all other values."""
    for value in values:
        if isinstance(value, Tensor):
            signature.append((value.dtype, value.device, value.size(), value.stride()))
        elif isinstance(value, (list, tuple)):
            signature.append(len(value))
            _sign(value, signature)
        else:
            signature.append(value.__class__)
            signature.append(value)
