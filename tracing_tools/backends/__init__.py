"""Ways to capture, one file each; all give the same records."""

from tracing_tools.backends import libbpf, strace
from tracing_tools.backends.base import Backend
from tracing_tools.trace.errors import UsageError, nearest

_BACKENDS = {
    "libbpf": (libbpf.LibbpfBackend, libbpf.unavailable_reason),
    "strace": (strace.StraceBackend, strace.unavailable_reason),
}
BACKEND_NAMES = list(_BACKENDS)


def unavailable_reasons() -> dict[str, str | None]:
    """Return for each backend, best first, why it does not work here; None where it does."""
    return {name: reason() for name, (_, reason) in _BACKENDS.items()}


def choose_backend(name: str) -> tuple[Backend, list[str]]:
    """Return the backend called `name` ('auto': the best that works here) and notes on why no better one was taken."""
    if name != "auto" and name not in _BACKENDS:
        raise UsageError(f"unknown backend '{name}'{nearest(name, BACKEND_NAMES)}; known: auto, {', '.join(BACKEND_NAMES)}")
    notes: list[str] = []
    for candidate in BACKEND_NAMES if name == "auto" else [name]:
        make, unavailable_reason = _BACKENDS[candidate]
        reason = unavailable_reason()
        if reason is None:
            return make(), notes
        notes.append(f"no {candidate}: {reason}")
    raise UsageError(f"this machine cannot trace: {'; '.join(notes)}")
