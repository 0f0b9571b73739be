"""What a backend cannot record of what was asked for, as notes."""

from tracing_tools.protocols import Scope

_MEANT = {
    "mmap": "reads through memory maps",
    "async": "requests through io_uring and libaio",
    "block": "block requests",
}


def not_recorded(backend: str, scope: Scope, groups: tuple[str, ...]) -> list[str]:
    """Return a note on those of the chosen groups of operations that `backend` knows nothing of, `groups`; none: no note."""
    chosen = [f"{group} ({_MEANT[group]})" if group in _MEANT else group for group in groups if group in scope.detail]
    return [f"{backend} does not record {', '.join(chosen)} of --detail; libbpf does"] if chosen else []
