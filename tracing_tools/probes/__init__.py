"""The eBPF programs, and their compilation: once by clang when installed, again when the source is newer."""

import os
import shutil
import subprocess
from pathlib import Path

from tracing_tools.trace.errors import IotwinError

_SOURCE = Path(__file__).parent / "syscalls.bpf.c"
_SOURCES = [_SOURCE, *Path(__file__).parent.glob("*.h")]
_OBJECT = Path(__file__).parent / "syscalls.bpf.o"
BCC_SOURCE = Path(__file__).parent / "syscalls.bcc.c"  # compiled by libbcc when a trace wants it
PRELOAD_SOURCE = Path(__file__).parent / "preload.c"  # compiled by cc when a trace wants it
_FLAGS = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wno-unused-function", "-Wno-unused-const-variable"]


def needs_compiling() -> bool:
    """Whether there is no compiled object, or its sources are newer."""
    return not _OBJECT.exists() or _OBJECT.stat().st_mtime < max(path.stat().st_mtime for path in _SOURCES)


def compiled_probes() -> Path:
    """Return the path of the compiled object, compiling it if need be; IotwinError when it needs clang and there is none."""
    if not needs_compiling():
        return _OBJECT
    clang = shutil.which("clang")
    if clang is None:
        raise IotwinError("the eBPF programs are not compiled and clang is not installed; install the package clang")
    partial = _OBJECT.with_name(f"{_OBJECT.name}.{os.getpid()}")
    try:
        subprocess.run([clang, *_FLAGS, "-c", str(_SOURCE), "-o", str(partial)], check=True, capture_output=True, text=True)
        partial.replace(_OBJECT)
    except subprocess.CalledProcessError as error:
        raise IotwinError(f"clang cannot compile {_SOURCE.name}: {error.stderr.strip().splitlines()[0]}") from None
    finally:
        partial.unlink(missing_ok=True)
    return _OBJECT
