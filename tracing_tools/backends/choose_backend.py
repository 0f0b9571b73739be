"""Chooses the backend that captures calls: the one that was named, or the best one that works on this machine."""

from collections.abc import Callable
from pathlib import Path

from iotwin.common.errors import IotwinError, UsageError, nearest
from iotwin.trace_store.manifest import Manifest
from iotwin.tracing_tools.backend_base import Backend, Scope
from iotwin.tracing_tools.backends import bcc, bpftrace, gpu_calls, libbpf, preload, strace

_BACKENDS: dict[str, tuple[Callable[[Scope], Backend], Callable[[], str | None]]] = {
    "libbpf": (libbpf.LibbpfBackend, libbpf.unavailable_reason),
    "bcc": (bcc.BccBackend, bcc.unavailable_reason),
    "bpftrace": (bpftrace.BpftraceBackend, bpftrace.unavailable_reason),
    "strace": (strace.StraceBackend, strace.unavailable_reason),
    "preload": (preload.PreloadBackend, preload.unavailable_reason),
}
BACKEND_NAMES = list(_BACKENDS)
# Functions that convert a backend's own files to records. The job can influence the files, so an unprivileged process reads them.
_CONVERTERS = {"bpftrace": bpftrace.convert, "strace": strace.convert, "preload": preload.convert}


def unavailable_reasons() -> dict[str, str | None]:
    """Return, by backend and best first, why the backend does not work here, None if it works. Loads eBPF programs to test."""
    return {name: unavailable_reason(name) for name in _BACKENDS}


def unavailable_reason(name: str) -> str | None:
    """Return why the backend called `name` does not work on this machine, None if it works."""
    try:
        _make(name, Scope(cgroup_id=1)).stop(None)
    except IotwinError as error:
        return str(error)
    return None


def _make(name: str, scope: Scope) -> Backend:
    make, unavailable_reason = _BACKENDS[name]
    if reason := unavailable_reason():
        raise IotwinError(reason)
    return make(scope)


def convert(raw: Path, manifest: Manifest) -> None:
    """Convert the files that the backend of `manifest` left in `raw` to records, and set the losses of `manifest`.

    Raises IotwinError if the files cannot be converted.
    """
    if converter := _CONVERTERS.get(manifest.backend):
        converter(raw, manifest)


def records_at_once(backend: Backend) -> bool:
    """Return True if `backend` records calls while the job runs, False if it converts its own files when the job has ended."""
    return backend.name not in _CONVERTERS


def check_name(name: str) -> None:
    """Raise UsageError unless `name` is 'auto' or the name of a backend."""
    if name != "auto" and name not in _BACKENDS:
        raise UsageError(f"unknown backend '{name}'{nearest(name, BACKEND_NAMES)}; known: auto, {', '.join(BACKEND_NAMES)}")


def choose_backend(name: str, scope: Scope) -> tuple[Backend, list[str]]:
    """Return (the backend called `name`, notes on why better backends do not work). 'auto' means the best that works."""
    check_name(name)
    notes: list[str] = []
    for candidate in BACKEND_NAMES if name == "auto" else [name]:
        try:
            return _with_gpu_calls(_make(candidate, scope), scope, notes), notes
        except IotwinError as error:
            notes.append(f"no {candidate}: {error}")
        except OSError as error:
            notes.append(f"no {candidate}: {error.strerror or error}")
    raise IotwinError(f"this machine cannot trace: {'; '.join(notes)}")


def _with_gpu_calls(backend: Backend, scope: Scope, notes: list[str]) -> Backend:
    """Return `backend`; if `scope` includes CUDA calls, wrap it to record them, or add to `notes` why they cannot be recorded."""
    if "gpu" not in scope.detail:
        return backend
    try:
        return gpu_calls.WithGpuCalls(backend, scope)
    except IotwinError as error:
        notes.append(f"no GPU calls: {error}")
        return backend
