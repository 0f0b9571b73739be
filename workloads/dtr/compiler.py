"""How the simulator's kernel is compiled: by numba where it is installed."""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

PLAIN = "_plain"  # how the name of a module ends whose functions stay Python
_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def has_numba() -> bool:
    """Return whether numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def compiler_of(module: str, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return what the functions of `module` are decorated with: numba's njit, or nothing in a plain module.

    `inline` is for functions that loops call: a call would pass each part of each array of the state.
    """
    if module.endswith(PLAIN) or not has_numba():
        return lambda function: function
    import numba

    directory = _kept_in(Path(sys.modules[module].__file__ or "").parent)

    def compiled(function: _Function) -> _Function:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory or "")
        try:
            # Nothing is allocated in a kernel, so counting references to its arrays (_nrt) would only cost: up to half of a run.
            return numba.njit(cache=directory is not None, nogil=True, _nrt=False, forceinline=inline)(function)
        finally:
            numba.config.CACHE_DIR = before

    return compiled


def _kept_in(package: Path) -> Path | None:
    """Return the folder of a package's compiled kernels: beside its byte code, else in the user's cache; None without either."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "iotwin"
    for place in (package / "__pycache__", user):
        directory = place / f"compiled-{content_of(package)}"
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None


@cache
def content_of(package: Path) -> str:
    """Return a hash of a package's modules.

    numba compiles a function anew when its own file changes; what it calls is compiled into it, and may lie in another.
    """
    digest = hashlib.sha256()
    for source in sorted(package.glob("*.py")):
        digest.update(f"{source.name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]
