"""Describe the machine on which a trace is recorded, and the version of iotwin that records it."""

import functools
import os
import socket
from importlib import metadata
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.files import file_system_of
from iotwin.common.untrusted_files import read_foreign_text
from iotwin.trace_store.manifest import Host


@functools.cache
def version() -> str:
    """Return iotwin's version."""
    try:
        return metadata.version("iotwin")
    except metadata.PackageNotFoundError:
        return "unknown"


def host(directory: Path) -> Host:
    """Return the description of this machine for a manifest, with the file system of `directory`, the trace's."""
    system = os.uname()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return Host(
        socket.gethostname(), system.release, os.cpu_count() or 1, memory, system.machine, file_system_of(directory), _boot_id()
    )


def _boot_id() -> str:
    try:
        return read_foreign_text(Path("/proc/sys/kernel/random/boot_id"), 64).strip()
    except (IotwinError, OSError):
        return ""
