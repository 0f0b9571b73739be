"""How the simulator's kernel is compiled: by numba where it is installed."""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

PLAIN = "_plain"  # how the name of a module ends whose functions stay Python
_Function = TypeVar("_Function", bound=Callable[..., Any])


@cache
def has_numba() -> bool:
    """Return whether numba can be imported."""
    return importlib.util.find_spec("numba") is not None


def compiler_of(module: str, inline: bool = False) -> Callable[[_Function], _Function]:
    """Return what the functions of `module` are decorated with: numba's njit, or nothing in a plain module.

    `inline` is for small functions that loops call: a call passes each part of each array of the state.
    """
    if module.endswith(PLAIN) or not has_numba():
        return lambda function: function
    import numba

    # Nothing is allocated in a kernel, so counting references to its arrays (_nrt) would only cost: up to half of a run.
    return numba.njit(cache=True, nogil=True, _nrt=False, forceinline=inline)
