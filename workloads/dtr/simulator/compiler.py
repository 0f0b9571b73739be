"""Compiles the simulator's kernel with numba, if numba is installed."""

import hashlib
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from iotwin.common.files import cache_folder, make_folder

PLAIN = "_plain"  # ending of the name of a module whose functions are not compiled
_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def has_numba() -> bool:
    """Return True if numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def compiler_of(module: str, inline: bool = False, internal: bool = False) -> Callable[[_Function], _Function]:
    """Return a decorator that compiles functions of `module`.

    Without numba, or if the name of the module ends in "_plain", the decorator returns the functions unchanged.

    Functions that are called in loops should be `inline`: a real call passes every field of every array of the kernel's state.
    Only compiled functions can call `inline` and `internal` ones. This saves a third of the compilation, since numba makes no
    code that converts arguments from Python.
    """
    if module.endswith(PLAIN) or not has_numba():
        return lambda function: function
    import numba

    directory = _kept_in(Path(sys.modules[module].__file__ or "").parent)

    def compiled(function: _Function) -> _Function:
        before, numba.config.CACHE_DIR = numba.config.CACHE_DIR, str(directory or "")
        try:
            # The kernel allocates nothing, so it needs no reference counting (_nrt), which takes up to half of a run's time.
            return numba.njit(
                cache=directory is not None, nogil=True, _nrt=False, forceinline=inline,
                no_cpython_wrapper=inline or internal, no_cfunc_wrapper=inline or internal,
            )(function)  # fmt: skip
        finally:
            numba.config.CACHE_DIR = before

    return compiled


def _kept_in(package: Path) -> Path | None:
    """Return the folder for a package's compiled functions: __pycache__ or the user's cache. None if both are read-only."""
    for folder in (package / "__pycache__", cache_folder()):
        directory = folder / f"compiled-{content_of(package)}"
        try:
            make_folder(directory)
        except OSError:
            continue
        if os.access(directory, os.W_OK):
            return directory
    return None


@cache
def content_of(package: Path) -> str:
    """Return a hash of the sources of all modules in `package`, which is part of the name of numba's cache.

    numba alone would notice changes only in a function's own file, but it inlines functions of other files.
    """
    digest = hashlib.sha256()
    for source in sorted(package.glob("*.py")):
        digest.update(f"{source.name}\0".encode() + hashlib.sha256(source.read_bytes()).digest())
    return digest.hexdigest()[:16]
