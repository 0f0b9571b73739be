"""What iotwin can do on this machine, one check a line."""

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator

Check = tuple[str, str, str | None]  # name, what it is for, why not (None: it works)

_BACKEND_PURPOSES = {
    "libbpf": "eBPF, near no overhead; all that --detail has",
    "bcc": "its calls, where clang or libbpf are missing",
    "bpftrace": "tracing by a script in bpftrace, dearer a call",
    "strace": "tracing without root or eBPF, exact but slow",
    "preload": "tracing without root, fast, dynamically linked programs only",
}


def checks() -> Iterator[Check]:
    """Yield every check, what matters most first."""
    from tracing_tools.backends import unavailable_reasons

    for name, reason in unavailable_reasons().items():
        yield name, _BACKEND_PURPOSES[name], reason
    yield "cgroup filter", "telling the job's tasks from all others", _cgroup_reason()
    yield "clang", "compiling the eBPF programs", None if shutil.which("clang") else "not installed; install the package clang"
    yield "torch", "training the real workloads (the demo)", _module_reason("torch", "make run installs it")
    yield "GPU samples", "GPU utilisation in traces", _gpu_reason()
    yield "python", "3.11 or newer", None if sys.version_info >= (3, 11) else f"this is {sys.version.split()[0]}"


def _module_reason(name: str, cure: str) -> str | None:
    return None if importlib.util.find_spec(name) else f"the Python package {name} is not installed; {cure}"


def _cgroup_reason() -> str | None:
    from tracing_tools.targets.cgroup import JobCgroup

    if os.geteuid() != 0:
        return "needs root; run under sudo (without it the process tree is followed)"
    cgroup = JobCgroup.create()
    if isinstance(cgroup, str):
        return f"{cgroup}; the process tree is followed instead"
    cgroup.remove()
    return None


def _gpu_reason() -> str | None:
    from tracing_tools.samplers.gpu import GpuSampler
    from tracing_tools.trace.errors import IotwinError

    try:
        GpuSampler()
    except IotwinError as error:
        return str(error)
    return None
