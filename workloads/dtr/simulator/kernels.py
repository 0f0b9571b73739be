"""One source, two kernels: the simulator's as numba makes it, and the same in plain Python on lists."""

import importlib.util
from functools import cache
from types import ModuleType

from iotwin.workloads.dtr.simulator import kernel
from iotwin.workloads.dtr.simulator.compiler import PLAIN, has_numba


@cache
def load_kernel(plain: bool) -> ModuleType:
    """Return iotwin.workloads.dtr.simulator.kernel; if `plain`, the same source without numba, to compare results with."""
    return kernel if not plain or not has_numba() else fresh_plain_kernel()


def fresh_plain_kernel() -> ModuleType:
    """Return a separate copy of iotwin.workloads.dtr.simulator.kernel, without numba."""
    spec = importlib.util.spec_from_file_location(kernel.__name__ + PLAIN, kernel.__file__)
    if spec is None or spec.loader is None:
        raise ImportError(f"{kernel.__file__} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
