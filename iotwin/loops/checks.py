"""What iotwin can do on this machine, one check a line."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Check = tuple[str, str, str | None]  # name, what it is for, why not (None: it works)

_BACKEND_PURPOSES = {
    "libbpf": "eBPF, near no overhead; all that --detail has",
    "bcc": "its calls, where clang or libbpf are missing",
    "bpftrace": "tracing by a script in bpftrace, dearer a call",
    "strace": "tracing without root or eBPF, exact but slow",
    "preload": "tracing without root, fast, dynamically linked programs only",
}


# The extras of pyproject.toml but `test`: what each is for, the modules it brings, how it is installed.
EXTRAS = {
    "torch": ("training the real workloads (the demo)", ("torch",), "make run installs it"),
    "hdf5": ("data sets of HDF5 files", ("h5py",), "make run installs it"),
    "tensorflow": ("training bert, tf.data loaders", ("tensorflow",), "make test installs it, or: pip install tensorflow-cpu"),
    "containers": ("tracing in containers", ("docker",), "make run installs it"),
    "gpu": ("reading GPUs", ("pynvml",), "make test installs it, or: pip install nvidia-ml-py"),
    "sql": ("questions in SQL (stats --sql)", ("duckdb",), "make run installs it"),
    "dask": ("large traces on a cluster", ("dask", "distributed"), "make test installs it, or: pip install dask distributed"),
    "s3": ("data sets in object stores", ("fsspec", "s3fs"), "make test installs it, or: pip install s3fs"),
    "dtr": ("dtr at full speed, and its ILP", ("numba", "scipy"), "make test installs it, or: pip install numba scipy"),
    "mpi": ("ranks on several nodes", ("mpi4py",), "make test installs it, or: pip install mpi4py"),
}


def checks() -> Iterator[Check]:
    """Yield every check, what matters most first."""
    from tracing_tools.backends import unavailable_reasons

    for name, reason in unavailable_reasons().items():
        yield name, _BACKEND_PURPOSES[name], reason
    yield "cgroup filter", "telling the job's tasks from all others", _cgroup_reason()
    yield "capped reads", "iotwin twin respond: a slower disk", _limit_reason("reads")
    yield "memory limit", "iotwin twin respond: a small page cache", _limit_reason("memory")
    yield "clang", "compiling the eBPF programs", None if shutil.which("clang") else "not installed; install the package clang"
    yield "docker", "running jobs in containers", _docker_reason()
    yield "GPU samples", "GPU utilisation in traces", _gpu_reason()
    for name, (purpose, modules, cure) in EXTRAS.items():
        yield name, purpose, _modules_reason(modules, cure)
    yield "python", "3.11 or newer", None if sys.version_info >= (3, 11) else f"this is {sys.version.split()[0]}"


def _modules_reason(modules: tuple[str, ...], cure: str) -> str | None:
    missing = [name for name in modules if not importlib.util.find_spec(name)]
    if missing:
        return f"no Python module {missing[0]}; {cure}"
    if modules == ("mpi4py",) and not shutil.which("mpirun"):
        return "no mpirun; install the package openmpi-bin"
    return None


def _docker_reason() -> str | None:
    """The engine's, by the command line's own question: it needs no Python package."""
    if not shutil.which("docker"):
        return "not installed; install the package docker.io"
    command = ["docker", "version", "--format", "{{.Server.Version}}"]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except subprocess.TimeoutExpired:
        return "the engine does not answer; see: docker version"
    if asked.returncode == 0:
        return None
    if "permission denied" in asked.stderr:
        return "only root and the group docker may use the engine; run under sudo"
    if os.environ.get("DOCKER_HOST"):
        return f"no engine answers at {os.environ['DOCKER_HOST']} (DOCKER_HOST); correct it"
    if not shutil.which("dockerd", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"):
        return "no engine; install the package docker.io"
    start = "systemctl start docker" if Path("/run/systemd/system").is_dir() else "dockerd &"
    return f"the engine is not running; start it: sudo {start}"


def _cgroup_reason() -> str | None:
    from tracing_tools.targets.cgroup import JobCgroup

    if os.geteuid() != 0:
        return "needs root; run under sudo (without it the process tree is followed)"
    cgroup = JobCgroup.create()
    if isinstance(cgroup, str):
        return f"{cgroup}; the process tree is followed instead"
    cgroup.remove()
    return None


def _limit_reason(what: str) -> str | None:
    from tracing_tools.targets.limits import reason_against

    return reason_against(what)


def _gpu_reason() -> str | None:
    from common.errors import IotwinError
    from tracing_tools.samplers.gpu import GpuSampler

    try:
        GpuSampler()
    except IotwinError as error:
        return str(error)
    return None
