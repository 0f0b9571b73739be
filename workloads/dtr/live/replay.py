"""Runs a recorded operation again."""

from typing import Any

import torch
from torch import UntypedStorage

from iotwin.common.errors import IotwinError
from iotwin.workloads.dtr.live.device_memory import DeviceMemory
from iotwin.workloads.dtr.live.operations import Argument, tensors_in
from iotwin.workloads.dtr.live.values import Operation, storage_of


def run_again(operation: Operation, storages: list[UntypedStorage], device: DeviceMemory) -> tuple[list[UntypedStorage], int]:
    """Run an operation on `storages`, which hold the contents of its inputs. Return (the storages that it made, its time in ns).

    A random operation draws the same numbers again, and the generator's state is left as it was.
    """
    # Below autograd and autocast: what was recorded is what ran after both. Autograd must not record it again.
    with torch._C._DisableTorchDispatch(), torch._C._AutoDispatchBelowAutograd(), torch._C._DisableAutocast():
        plan, tensors = operation.plan, [(storages[index], offset) for index, offset in operation.tensors]
        args = _with_tensors(plan.args, tensors)
        kwargs = dict(zip(plan.kwargs, _with_tensors(plan.kwargs.values(), tensors), strict=True))
        gradients = torch.is_grad_enabled()
        torch._C._set_grad_enabled(operation.gradients)
        before = None
        if operation.random_state is not None:
            before = device.random_state(kwargs)
            device.set_random_state(kwargs, operation.random_state)
        try:
            result, spent_ns = device.timed(plan, operation.func, args, kwargs)
        finally:
            torch._C._set_grad_enabled(gradients)
            if before is not None:
                device.set_random_state(kwargs, before)
        given = {storage._cdata for storage in storages}
        made = (storage_of(tensor) for tensor in tensors_in((result,)))
        storages = list({storage._cdata: storage for storage in made if storage._cdata not in given}.values())
    if len(storages) != len(operation.outputs) - len(operation.written):
        raise IotwinError(f"{operation.func} returned another number of tensors when it was computed again")
    return storages, spent_ns


def _with_tensors(values: Any, tensors: list[tuple[UntypedStorage, int]]) -> list[Any]:
    return [
        value.on(*tensors[value.number]) if isinstance(value, Argument)
        else _with_tensors(value, tensors) if isinstance(value, list)
        else value
        for value in values
    ]  # fmt: skip
