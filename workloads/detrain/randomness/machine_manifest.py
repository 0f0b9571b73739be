"""Collects what the results of a training run depend on, besides its code and data: machine, versions, threads, seed."""

import os
import platform
import sys
from pathlib import Path
from typing import Any

from iotwin.common.errors import IotwinError
from iotwin.common.ranks import launched_by_torchrun
from iotwin.common.untrusted_files import read_foreign_text

_VARIABLES = {
    "hash_seed": "PYTHONHASHSEED",
    "cublas_workspace": "CUBLAS_WORKSPACE_CONFIG",
    "nccl_algo": "NCCL_ALGO",
    "nccl_proto": "NCCL_PROTO",
}


def manifest(profile: str, seed: int) -> dict[str, Any]:
    """Return the manifest of this process. Entries of torch and TensorFlow are None if the script has not imported them."""
    import numpy as np

    found: dict[str, Any] = {
        "device": None, "driver": None, "torch": None, "cudnn": None, "tensorflow": None, "numpy": np.__version__,
        "python": platform.python_version(), "cpu": _cpu(), "vectors": None, "threads": None, "interop_threads": None,
        "float32_matmul": None, "tf32": None, "attention": None, "deterministic": None,
        "world_size": launched_by_torchrun().size, "seed": seed, "determinism": profile,
        **{name: os.environ.get(variable) for name, variable in _VARIABLES.items()},
    }  # fmt: skip
    if "torch" in sys.modules:
        found |= _torch_entries()
    if "tensorflow" in sys.modules:
        found["tensorflow"] = sys.modules["tensorflow"].__version__
    return found


def differences(saved: dict[str, Any], here: dict[str, Any]) -> list[str]:
    """Return in words how two manifests differ, such as "threads: 2, here 1". Equal manifests allow bitwise equal results."""
    names = [*saved, *(name for name in here if name not in saved)]
    return [f"{name}: {saved.get(name)}, here {here.get(name)}" for name in names if saved.get(name) != here.get(name)]


def _cpu() -> str:
    try:
        lines = read_foreign_text(Path("/proc/cpuinfo")).splitlines()
    except (IotwinError, OSError):
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _torch_entries() -> dict[str, Any]:
    import torch

    cuda = torch.cuda.is_available()
    return {
        "device": torch.cuda.get_device_name() if cuda else "cpu",
        "driver": _driver() if cuda else None,
        "torch": str(torch.__version__),
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "tf32": torch.backends.cudnn.allow_tf32 if cuda else None,
        "attention": _attention(),
        "deterministic": _deterministic(),
    }


def _driver() -> str | None:
    try:
        text = read_foreign_text(Path("/sys/module/nvidia/version"))
    except (IotwinError, OSError):
        return None
    return text.strip()


def _attention() -> list[str]:
    """Return the implementations of scaled dot-product attention that torch may choose."""
    import torch

    flags = torch.backends.cuda
    allowed = {
        "flash": flags.flash_sdp_enabled(),
        "mem_efficient": flags.mem_efficient_sdp_enabled(),
        "cudnn": flags.cudnn_sdp_enabled(),
        "math": flags.math_sdp_enabled(),
    }
    return [name for name, is_allowed in allowed.items() if is_allowed]


def _deterministic() -> str:
    import torch

    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "error"
