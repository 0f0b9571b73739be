"""The machine that a trace is taken on, and the version of what takes it."""

import functools
import os
import socket
from importlib import metadata
from pathlib import Path

from common.files import file_system_of
from tracing_tools.trace.manifest import Host


@functools.cache
def version() -> str:
    """Return our own version."""
    try:
        return metadata.version("iotwin")
    except metadata.PackageNotFoundError:
        return "unknown"


def host(directory: Path) -> Host:
    """Describe this machine; `directory` is where the trace is written."""
    system = os.uname()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(socket.gethostname(), system.release, os.cpu_count() or 1, memory, system.machine, file_system_of(directory))
