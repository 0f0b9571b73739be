"""Ends a forked process after its script, as Python does, but frees no memory of PyTorch: that takes longer than a small run."""

import atexit
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NoReturn


def exit_status_of(run: Callable[[], None]) -> int:
    """Run a script, and return the exit status that Python would return for it."""
    try:
        run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def end_process(status: int, modules: Sequence[ModuleType]) -> NoReturn:
    """Exit. Of all objects, free only those of `modules`."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for module in modules:
        module.__dict__.clear()
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
