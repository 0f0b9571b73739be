"""Sample GPUs (schema.GPU_SAMPLES, GPU_PROCESS_SAMPLES) through NVML; requires the package nvidia-ml-py."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError

_UTILISATIONS = {"sm_percent": "smUtil", "mem_percent": "memUtil", "enc_percent": "encUtil", "dec_percent": "decUtil"}


class GpuSampler:
    """Samples utilisation and memory of each GPU that NVML lists, and of each process on it, as nvidia-smi and its pmon do.

    Values that the driver does not report (utilisation of a part of a GPU, memory in some containers) are null.
    """

    def __init__(self) -> None:
        """Find the GPUs. Raises IotwinError with the reason if there are none to sample."""
        try:
            import pynvml
        except ImportError:
            raise IotwinError("the Python package nvidia-ml-py is not installed") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        except pynvml.NVMLError_LibraryNotFound:
            raise IotwinError("no NVIDIA driver is installed here") from None
        except pynvml.NVMLError as error:
            raise IotwinError(f"NVIDIA's library cannot be used: {error}") from None
        if not self._devices:
            raise IotwinError("NVML lists no GPU")
        self._seen_us = [0] * len(self._devices)  # per GPU, the driver's time of the newest process sample read

    def sample(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield ("gpu", row) for every GPU and ("gpu_process", row) for every process that uses a GPU."""
        now = time.monotonic_ns()
        for index, device in enumerate(self._devices):
            rates = self._query(self._nvml.nvmlDeviceGetUtilizationRates, device)
            memory = self._query(self._nvml.nvmlDeviceGetMemoryInfo, device)
            if rates is not None or memory is not None:
                yield (
                    "gpu",
                    {
                        "time_ns": now,
                        "device": index,
                        "sm_percent": None if rates is None else float(rates.gpu),
                        "memory_percent": None if rates is None else float(rates.memory),
                        "memory_used_bytes": None if memory is None else int(memory.used),
                    },
                )
            for row in self._process_rows(index, device):
                yield "gpu_process", {"time_ns": now, "device": index, **row}

    def _process_rows(self, index: int, device: Any) -> Iterator[dict[str, Any]]:
        # NVML usually reports an error if no process was busy since the last sample.
        samples = self._query(self._nvml.nvmlDeviceGetProcessUtilization, device, self._seen_us[index]) or []
        newest = {int(sample.pid): sample for sample in sorted(samples, key=lambda sample: int(sample.timeStamp))}
        self._seen_us[index] = max([self._seen_us[index], *(int(sample.timeStamp) for sample in samples)])
        running = self._query(self._nvml.nvmlDeviceGetComputeRunningProcesses, device) or []
        used = {int(process.pid): process.usedGpuMemory for process in running}
        for pid in sorted({*newest, *used} - {0}):
            sample = newest.get(pid)
            rates = {name: None if sample is None else float(getattr(sample, field)) for name, field in _UTILISATIONS.items()}
            yield {"pid": pid, **rates, "memory_used_bytes": used.get(pid), "command": _command(pid)}

    def _query(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of NVML's `function`, None if it fails, since a GPU that falls off its bus must not end a trace."""
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _command(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None  # the process has ended, or is in another namespace
