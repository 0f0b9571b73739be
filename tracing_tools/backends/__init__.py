"""Ways to capture, one file each; all give the same records."""

from collections.abc import Callable
from pathlib import Path

from common.errors import IotwinError, UsageError, nearest
from tracing_tools.backends import bcc, bpftrace, gpu_calls, libbpf, preload, strace
from tracing_tools.protocols import Backend, Scope
from tracing_tools.trace.manifest import Manifest

_BACKENDS: dict[str, tuple[Callable[[Scope], Backend], Callable[[], str | None]]] = {
    "libbpf": (libbpf.LibbpfBackend, libbpf.unavailable_reason),
    "bcc": (bcc.BccBackend, bcc.unavailable_reason),
    "bpftrace": (bpftrace.BpftraceBackend, bpftrace.unavailable_reason),
    "strace": (strace.StraceBackend, strace.unavailable_reason),
    "preload": (preload.PreloadBackend, preload.unavailable_reason),
}
BACKEND_NAMES = list(_BACKENDS)
# Of what they leave in a form of their own: the job had a hand in it, so it is read by a process of the caller's.
_CONVERTERS = {"bpftrace": bpftrace.convert, "strace": strace.convert, "preload": preload.convert}


def unavailable_reasons() -> dict[str, str | None]:
    """Return for each backend, best first, why it does not work here; None where it does. Tries each as far as loading goes."""
    return {name: unavailable_reason(name) for name in _BACKENDS}


def unavailable_reason(name: str) -> str | None:
    """Return why the backend called `name` does not work here, or None when it does."""
    try:
        _make(name, Scope(cgroup_id=1)).stop(None)
    except IotwinError as error:
        return str(error)
    return None


def _make(name: str, scope: Scope) -> Backend:
    """Return a backend ready to start; IotwinError with the reason when this machine cannot."""
    make, unavailable_reason = _BACKENDS[name]
    if reason := unavailable_reason():
        raise IotwinError(reason)
    return make(scope)


def convert(raw: Path, manifest: Manifest) -> None:
    """Turn what the manifest's backend left in `raw` into records, and set what was lost; IotwinError when it cannot."""
    if converter := _CONVERTERS.get(manifest.backend):
        converter(raw, manifest)


def choose_backend(name: str, scope: Scope) -> tuple[Backend, list[str]]:
    """Return the backend called `name` ('auto': the best that works here), and notes on why no better one was taken."""
    if name != "auto" and name not in _BACKENDS:
        raise UsageError(f"unknown backend '{name}'{nearest(name, BACKEND_NAMES)}; known: auto, {', '.join(BACKEND_NAMES)}")
    notes: list[str] = []
    for candidate in BACKEND_NAMES if name == "auto" else [name]:
        try:
            return _with_gpu_calls(_make(candidate, scope), scope, notes), notes
        except IotwinError as error:
            notes.append(f"no {candidate}: {error}")
    raise IotwinError(f"this machine cannot trace: {'; '.join(notes)}")


def _with_gpu_calls(backend: Backend, scope: Scope, notes: list[str]) -> Backend:
    """Return `backend`, with the calls of CUDA's API beside it if they are wanted and can be had; a note says why not."""
    if "gpu" not in scope.detail:
        return backend
    try:
        return gpu_calls.WithGpuCalls(backend, scope)
    except IotwinError as error:
        notes.append(f"no GPU calls: {error}")
        return backend
