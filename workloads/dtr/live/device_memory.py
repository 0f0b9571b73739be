"""The device whose memory is limited: how its allocator rounds sizes, the times of operations, and its random generator."""

from time import perf_counter_ns
from typing import Any

import torch
from torch import Tensor

from iotwin.common.errors import UsageError
from iotwin.workloads.dtr.live.operations import AllocationPlan

_UNSPLIT = 1 << 20
_CUDA_BLOCK = 512  # PyTorch's allocator rounds sizes up to multiples of it


def usable_device(name: str, present: bool = True) -> torch.device:
    """Return the CPU or the GPU with this name. Raises UsageError if it is neither, or if PyTorch cannot use that GPU.

    If `present` is False, the machine need not have that GPU.
    """
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"the device '{name}' is unknown; choose cpu, cuda or, of several GPUs, for example cuda:1") from None
    if device.type == "cpu":
        return torch.device("cpu")  # without an index, as the storages have none
    if device.type != "cuda":
        raise UsageError(f"the device must be cpu or cuda, not {device.type}")
    if present and (device.index or 0) >= torch.cuda.device_count():
        raise UsageError(f"the device {name} needs a GPU that PyTorch can use; it has {torch.cuda.device_count()}")
    return device


class DeviceMemory:
    """A CPU or a CUDA GPU.

    On a CPU, only the bytes of storages are known. On a GPU, the bytes that kernels allocate for themselves are known, too.
    """

    def __init__(self, device: torch.device) -> None:
        self.is_gpu = device.type == "cuda"
        self.device = torch.device("cuda", torch.cuda.current_device()) if self.is_gpu and device.index is None else device
        self._allocator_peak = 0
        # An upper limit of the bytes that a GPU's allocator may have allocated since it was last queried.
        self.unseen = 0
        if self.is_gpu:
            torch.cuda.reset_peak_memory_stats(self.device)

    def rounded(self, size: int) -> int:
        """Return the bytes that the allocation of a storage of `size` bytes takes."""
        return -(-size // _CUDA_BLOCK) * _CUDA_BLOCK if self.is_gpu else size

    def allocated(self) -> int:
        """Return the bytes that are allocated on a GPU; 0 for a CPU, whose allocator does not count its bytes."""
        if not self.is_gpu:
            return 0
        # torch.cuda.memory_allocated returns the same number, but first sorts all of the allocator's statistics.
        return int(torch._C._cuda_memoryStats(self.device.index)["allocated_bytes"]["all"]["current"])

    def spare(self, size: int) -> int:
        """Return by how many bytes an allocation can exceed `size`: PyTorch does not split off blocks of less than 1 MiB."""
        return _UNSPLIT if self.is_gpu and size > _UNSPLIT else 0

    def forget_peak(self) -> None:
        """Begin to measure PyTorch's peak anew. `allocator_peak` still includes the former peak."""
        if self.is_gpu:
            self._allocator_peak = self.allocator_peak()
            torch.cuda.reset_peak_memory_stats(self.device)

    def allocator_peak(self) -> int:
        """Return the most bytes that PyTorch's allocator has had allocated on a GPU, with those of kernels; 0 for a CPU."""
        return max(self._allocator_peak, torch.cuda.max_memory_allocated(self.device)) if self.is_gpu else 0

    def timed(self, plan: AllocationPlan, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, int]:
        """Run an operation and return (its result, its time in ns). Update the plan's shortest time and its kernels' bytes.

        A GPU computes after the call has returned. There, only the first calls of a plan are timed, since timing must wait for
        the GPU. For later calls, the plan's time is returned.
        """
        if not self.is_gpu:
            begin = perf_counter_ns()
            result = func(*args, **kwargs)
            spent_ns = perf_counter_ns() - begin
        elif plan.calls >= _TIMED_CALLS:
            self.unseen += plan.spare_bytes
            spent_ns, result = plan.cost_ns, func(*args, **kwargs)
        else:
            torch.cuda.synchronize(self.device)
            before = self.allocated()
            self.forget_peak()
            begin = perf_counter_ns()
            result = func(*args, **kwargs)
            torch.cuda.synchronize(self.device)
            spent_ns = perf_counter_ns() - begin
            peak = torch.cuda.max_memory_allocated(self.device)
            plan.allocates_besides(peak - before - plan.fresh_bytes)
            self.unseen = _UNKNOWN_BYTES  # the kernel may keep some of what it allocated
        plan.cost_ns = min(plan.cost_ns, spent_ns) if plan.calls else spent_ns
        plan.calls += 1
        return result, spent_ns

    def random_state(self, kwargs: dict[str, Any]) -> Tensor:
        """Return the state of the generator that an operation with these arguments draws from."""
        return self._generator(kwargs).get_state()

    def set_random_state(self, kwargs: dict[str, Any], state: Tensor) -> None:
        """Set the state of the generator that an operation with these arguments draws from."""
        self._generator(kwargs).set_state(state)

    def _generator(self, kwargs: dict[str, Any]) -> Any:
        given = kwargs.get("generator")
        if given is not None:
            return given
        return torch.cuda.default_generators[self.device.index] if self.is_gpu else torch.default_generator


_UNKNOWN_BYTES = 1 << 62
_TIMED_CALLS = 2  # the first call of a kernel also loads it
