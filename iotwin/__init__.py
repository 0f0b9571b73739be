"""Traces what a training job does to storage, builds its I/O twin, runs the twin and measures how alike the two are.

This package holds the command line (`commands`) and the tasks that combine several other packages (`loops`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import os

    from iotwin.trace_store.reader import Trace

__version__ = "0.1.0"


def open(path: str | os.PathLike[str]) -> Trace:
    """Return the trace at `path`, whose methods read its tables. Raises IotwinError if there is no finished trace."""
    from pathlib import Path

    from iotwin.trace_store.reader import Trace

    return Trace(Path(path))
