"""The machine that a trace is taken on, and the version of what takes it."""

import functools
import os
import socket
from importlib import metadata
from pathlib import Path

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
    return Host(socket.gethostname(), system.release, os.cpu_count() or 1, memory, system.machine, _file_system_of(directory))


def _file_system_of(path: Path) -> str:
    """Return the type of the file system that `path` is or will be on."""
    best, kind = "", ""
    resolved = str(path.absolute())
    for line in Path("/proc/self/mounts").read_text().splitlines():
        mount, found = line.split()[1:3]
        if (resolved == mount or resolved.startswith(mount.rstrip("/") + "/")) and len(mount) >= len(best):
            best, kind = mount, found
    return kind
