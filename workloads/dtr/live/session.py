"""A context manager that puts the user's training loop under a memory budget."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from math import isqrt
from pathlib import Path
from time import perf_counter
from typing import Any, Self

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from iotwin.common.errors import UsageError
from iotwin.common.units import parse_size
from iotwin.workloads.dtr.live.device_memory import usable_device
from iotwin.workloads.dtr.live.evicted_reads import explained_reads
from iotwin.workloads.dtr.live.memory import BudgetError
from iotwin.workloads.dtr.live.offload import OffloadFile
from iotwin.workloads.dtr.live.runtime import Runtime
from iotwin.workloads.dtr.live.threads import shared_with_threads
from iotwin.workloads.dtr.live.values import NOWHERE, storage_of
from iotwin.workloads.dtr.simulator.heuristics import heuristic_named

# Methods of tensors that read memory without an operation of PyTorch, or pass its address on.
_READERS = (
    "numpy", "__array__", "tolist", "data_ptr", "__dlpack__", "untyped_storage", "storage", "share_memory_", "__reduce_ex__",
    "__deepcopy__", "_typed_storage", "set_", "pin_memory",
)  # fmt: skip
_entered = threading.Lock()


@dataclass(frozen=True)
class Account:
    """What a memory budget has cost so far. Times are in seconds; on a GPU, those of operations are estimates."""

    budget_bytes: int | None  # None: no limit
    peak_bytes: int
    allocator_peak_bytes: int  # by PyTorch's allocator of a GPU, with the bytes that kernels take; 0 on a CPU
    least_bytes: int  # the smallest budget with which each operation so far could have run
    evictions: int
    rematerializations: int
    offloaded_bytes: int  # written to the file of evicted tensors
    restored_bytes: int  # read from it
    offload_s: float
    base_compute_s: float
    remat_compute_s: float
    search_s: float
    cost_s: float

    @property
    def over_budget(self) -> int:
        """The bytes by which the peak exceeds the budget. On a GPU, a kernel's first call may take more than expected."""
        most = max(self.peak_bytes, self.allocator_peak_bytes)
        return 0 if self.budget_bytes is None else max(0, most - self.budget_bytes)

    def document(self) -> dict[str, Any]:
        """Return the account as a JSON object."""
        return {**asdict(self), "over_budget": self.over_budget}


class Rematerialize(ExitStack):
    """A context manager: within its block, PyTorch's tensors on one device take at most `budget` bytes.

    It evicts results of operations as DTR's `heuristic` chooses, and computes them again; all numbers remain equal bit for bit.
    The budget covers the tensors that operations read or make. On a CPU, it does not cover memory that a kernel frees before it
    returns.

    * `budget`: bytes, or a text such as "4GiB"; None: no limit, but `account` measures.
    * `device`: "cpu" or a GPU ("cuda", "cuda:1"); by default the GPU, if there is one.
    * `sampling`, `ignore_small`: search fewer candidates for eviction, as DTR's prototype can.
    * `offload`: folder for a file in which evicted tensors are saved if that is faster than computing them again.

    Raises UsageError for wrong values, and BudgetError within the block if an operation does not fit.
    """

    def __init__(
        self, budget: int | str | None, heuristic: str = "DTREqClass", *, device: str | None = None, sampling: bool = False,
        ignore_small: bool = False, seed: int = 0, offload: str | os.PathLike[str] | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        limit = parse_size(budget) if isinstance(budget, str) else budget
        if limit is not None and limit <= 0:
            raise UsageError(f"a memory budget of {limit} bytes is not above 0")
        chosen = usable_device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        file = None if offload is None else OffloadFile(Path(offload))
        self._runtime = Runtime(
            limit if limit is not None else _NO_LIMIT, heuristic_named(heuristic), chosen,
            sampling=sampling, ignore_small=ignore_small, seed=seed, offload=file,
        )  # fmt: skip

    @classmethod
    def find_budget(cls, train: Callable[[], object], *, limit_s: float, at_least: int = 0, **choice: Any) -> tuple[int, int]:
        """Return (bytes below which no budget is possible, bytes that were enough) for what `train` does.

        Each try calls `train` within another budget, until `limit_s` seconds have passed or the answer is precise to 5 %. `train`
        must begin anew at each call, and train two steps or more: the optimizer's state exists only after the first.
        `at_least`: bytes that are known to be necessary. `choice`: options of this class, like `heuristic`.
        """
        with cls(None, device=choice.get("device")) as unlimited:
            train()
        until = perf_counter() + limit_s
        least = low = max(at_least, unlimited.account.least_bytes)
        enough = max(least, unlimited.account.peak_bytes)
        while enough > low * (1 + _PRECISION) and perf_counter() < until:
            budget = isqrt(low * enough)
            try:
                with cls(budget, **choice):
                    train()
                enough = budget
            except BudgetError:
                low = budget
        return least, enough

    def __enter__(self) -> Self:
        if not _entered.acquire(blocking=False):
            raise UsageError("a memory budget is in force already; PyTorch's tensors can have only one at a time")
        self.callback(_entered.release)
        self.push(_advise)
        self.enter_context(explained_reads(NOWHERE, 2 * NOWHERE))
        self.callback(self._runtime.end)
        self.enter_context(torch.compiler.set_stance("force_eager"))  # compiled code would allocate memory outside of operations
        self.enter_context(_pinning_readers(self._runtime))
        self.enter_context(shared_with_threads(self._runtime))
        self.callback(register_optimizer_step_pre_hook(self._before_step).remove)
        self.callback(register_optimizer_step_post_hook(self._after_step).remove)
        return self

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        """Compute evicted gradients before the optimizer changes the parameters from which they were computed."""
        self._runtime.untracked = True
        self._runtime.keep_dependants([p for group in optimizer.param_groups for p in group["params"]])

    def _after_step(self, *_: Any) -> None:
        self._runtime.untracked = False

    @property
    def account(self) -> Account:
        """What the budget has cost so far."""
        memory = self._runtime.memory
        file = memory.offload
        written, read = (0, 0) if file is None else file.traffic_bytes
        return Account(
            budget_bytes=memory.budget if memory.budget != _NO_LIMIT else None,
            peak_bytes=memory.peak,
            allocator_peak_bytes=memory.device.allocator_peak(),
            least_bytes=memory.least,
            evictions=memory.evictions,
            rematerializations=memory.rematerializations,
            offloaded_bytes=written,
            restored_bytes=read,
            offload_s=0 if file is None else (file.write_ns + file.read_ns) / 1e9,
            base_compute_s=memory.base_ns / 1e9,
            remat_compute_s=memory.remat_ns / 1e9,
            search_s=memory.candidates.search_ns / 1e9,
            cost_s=memory.candidates.cost_ns / 1e9,
        )

    @property
    def used_bytes(self) -> int:
        """The bytes that tensors take now."""
        return self._runtime.used_bytes()

    def storage_bytes(self, tensor: Tensor) -> int:
        """Return the bytes that a tensor's storage takes from the budget while it is in memory: 0 if it is on another device."""
        return self._runtime.memory.counted(storage_of(tensor))

    def take_latest_call(self) -> tuple[int, int]:
        """Return (shortest time in ns, bytes that its kernels allocate in addition to its results) of the latest operation.

        Both are 0 if no operation except views has run since the last call of this method.
        """
        memory = self._runtime.memory
        plan, memory.latest = memory.latest, None
        return (0, 0) if plan is None else (plan.cost_ns, plan.workspace_bytes)

    def pin(self, tensor: Tensor) -> None:
        """Bring a tensor to memory and never evict it, for code that reads its memory without operations of PyTorch."""
        self._runtime.pin(tensor)


@contextmanager
def _pinning_readers(runtime: Runtime) -> Iterator[None]:
    """While the block runs, pin a tensor before a method reads its memory without an operation.

    The methods of `torch.Tensor` are replaced, since a `TorchFunctionMode` would slow down every function of tensors.
    """
    own = {name: Tensor.__dict__[name] for name in _READERS if name in Tensor.__dict__}
    for name in _READERS:
        setattr(Tensor, name, _pinning(runtime, getattr(Tensor, name)))
    try:
        yield
    finally:
        for name in _READERS:
            if name in own:
                setattr(Tensor, name, own[name])
            else:
                delattr(Tensor, name)


def _pinning(runtime: Runtime, method: Any) -> Any:
    @wraps(method)
    def pin_and_read(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        runtime.pin_known(tensor)
        return method(tensor, *args, **kwargs)

    return pin_and_read


def _advise(_kind: type[BaseException] | None, error: BaseException | None, _traceback: Any) -> None:
    """Add to the error of a budget that is too small how to find one that is enough."""
    if isinstance(error, BudgetError):
        error.add_note("To find a budget that is enough, pass the training of two steps to iotwin.dtr_budget.")


_NO_LIMIT = 1 << 62
_PRECISION = 0.05  # the sufficient budget that is found exceeds one that is too small by at most this share
