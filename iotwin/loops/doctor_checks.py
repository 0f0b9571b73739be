"""The checks of ``iotwin doctor``: what iotwin can do on this machine, and why not the rest."""

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

Check = tuple[str, str, str | None]  # name, purpose, and the reason why it does not work (None if it works)

_BACKEND_PURPOSES = {
    "libbpf": "tracing by eBPF, least overhead; all of --detail",
    "bcc": "tracing by eBPF without clang or libbpf",
    "bpftrace": "tracing by a bpftrace script, more overhead",
    "strace": "tracing without root or eBPF, exact but slow",
    "preload": "tracing without root, fast, dynamically linked programs only",
}


# The optional extras in pyproject.toml, except `test`: the purpose of each, and the modules that it installs.
EXTRAS = {
    "torch": ("training the real workloads (the demo)", ("torch",)),
    "hdf5": ("data sets of HDF5 files", ("h5py",)),
    "tensorflow": ("training bert, tf.data loaders", ("tensorflow",)),
    "containers": ("tracing in containers", ("docker",)),
    "gpu": ("reading GPUs", ("pynvml",)),
    "sql": ("questions in SQL (stats --sql)", ("duckdb",)),
    "polars": ("tables as Polars frames (Python)", ("polars",)),
    "dask": ("large traces on a cluster", ("dask", "distributed")),
    "s3": ("data sets in object stores", ("fsspec", "s3fs")),
    "dtr": ("dtr at full speed, and its ILP", ("numba", "scipy")),
    "mpi": ("ranks on several nodes", ("mpi4py",)),
    "pipedream": ("scores of translations (pipedream bleu)", ("sacrebleu",)),
}


def checks() -> Iterator[Check]:
    """Yield every check, the most important first."""
    from iotwin.tracing_tools.backends.choose_backend import unavailable_reasons
    from iotwin.tracing_tools.probes import uncompiled_reason
    from iotwin.tracing_tools.targets.storage_limits import MEMORY, READS, reason_against

    for name, reason in unavailable_reasons().items():
        yield name, _BACKEND_PURPOSES[name], reason
    yield "cgroup filter", "separating the job's tasks from all others", _cgroup_reason()
    yield "capped reads", "iotwin twin respond: a slower disk", reason_against(READS)
    yield "memory limit", "iotwin twin respond: a small page cache", reason_against(MEMORY)
    yield "clang", "compiling the eBPF programs", uncompiled_reason()
    yield "docker", "running jobs in containers", _docker_reason()
    yield "GPU samples", "GPU utilisation in traces", _gpu_reason()
    for name, (purpose, modules) in EXTRAS.items():
        yield name, purpose, _extra_reason(name, modules)
    yield "python", "3.11 or newer", None if sys.version_info >= (3, 11) else f"this is {sys.version.split()[0]}"


def _extra_reason(extra: str, modules: tuple[str, ...]) -> str | None:
    missing = [name for name in modules if not importlib.util.find_spec(name)]
    if missing:
        return f"no Python module {missing[0]}; pip install 'iotwin[{extra}]'"
    if extra == "mpi" and not shutil.which("mpirun"):
        return "no mpirun; install the package openmpi-bin"
    return None


def _docker_reason() -> str | None:
    """Return why containers cannot run on this machine, None if they can, by the command `docker`."""
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
    return f"the engine is not running; start it: {_as_root(start)}"


def _as_root(command: str) -> str:
    """Return `command` as the caller can run it as root: unchanged, with sudo, or with a hint."""
    if os.geteuid() == 0:
        return command
    return f"sudo {command}" if shutil.which("sudo") else f"{command} (as root)"


def _cgroup_reason() -> str | None:
    from iotwin.tracing_tools.targets.cgroup import JobCgroup

    if os.geteuid() != 0:
        return "needs root; run under sudo (without it the process tree is followed)"
    cgroup = JobCgroup.create()
    if isinstance(cgroup, str):
        return f"{cgroup}; the process tree is followed instead"
    cgroup.remove()
    return None


def _gpu_reason() -> str | None:
    from iotwin.common.errors import IotwinError
    from iotwin.tracing_tools.samplers.gpu import GpuSampler

    try:
        GpuSampler()
    except IotwinError as error:
        return str(error)
    return None
