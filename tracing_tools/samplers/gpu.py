"""GPU samples (schema.GPU_SAMPLES) through NVML, where there is one; the package nvidia-ml-py is an extra."""

import time
from collections.abc import Iterator
from typing import Any

from tracing_tools.trace.errors import IotwinError


class GpuSampler:
    """Utilisation and memory of every GPU that NVML lists."""

    def __init__(self) -> None:
        """IotwinError with the reason when there is no GPU to sample."""
        try:
            import pynvml
        except ImportError:
            raise IotwinError("the Python package nvidia-ml-py is not installed") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError as error:
            raise IotwinError(f"NVML says: {error}") from None
        if not self._devices:
            raise IotwinError("NVML lists no GPU")

    def sample(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ("gpu", row) for every GPU."""
        now = time.monotonic_ns()
        for index, device in enumerate(self._devices):
            rates, memory = self._nvml.nvmlDeviceGetUtilizationRates(device), self._nvml.nvmlDeviceGetMemoryInfo(device)
            yield "gpu", {
                "time_ns": now, "device": index, "sm_percent": float(rates.gpu), "memory_percent": float(rates.memory),
                "memory_used_bytes": int(memory.used),
            }  # fmt: skip
