"""The eBPF programs, and their compilation: once by clang when installed, again when the source is newer."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from common.errors import IotwinError
from common.files import made_whole

_DIRECTORY = Path(__file__).parent
PROGRAMS = ("syscalls", "cuda")  # each NAME.bpf.c, compiled to NAME.bpf.o
BCC_SOURCE = _DIRECTORY / "syscalls.bcc.c"  # compiled by libbcc when a trace wants it
BPFTRACE_EVENTS = _DIRECTORY / "io_events.bt"
PRELOAD_SOURCE = _DIRECTORY / "preload.c"  # compiled by cc when a trace wants it
_FLAGS = ["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wno-unused-function", "-Wno-unused-const-variable"]
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def text_with_headers(source: Path) -> str:
    """Return the text of a C file with our own headers, each once, in place of ``#include "..."``: for who compiles a text."""
    seen: set[str] = set()

    def text_of(path: Path) -> str:
        return _INCLUDE.sub(lambda line: header(line[1]), path.read_text())

    def header(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return text_of(source.with_name(name))

    return text_of(source)


def _object(program: str) -> Path:
    return _DIRECTORY / f"{program}.bpf.o"


def needs_compiling(program: str = "syscalls") -> bool:
    """Whether there is no compiled object, or its sources are newer."""
    sources = [_DIRECTORY / f"{program}.bpf.c", *_DIRECTORY.glob("*.h")]
    compiled = _object(program)
    return not compiled.exists() or compiled.stat().st_mtime < max(path.stat().st_mtime for path in sources)


def compiled_probes(program: str = "syscalls") -> Path:
    """Return the path of the compiled object, compiling it if need be; IotwinError when it needs clang and there is none."""
    compiled, source = _object(program), _DIRECTORY / f"{program}.bpf.c"
    if not needs_compiling(program):
        return compiled
    clang = shutil.which("clang")
    if clang is None:
        raise IotwinError("the eBPF programs are not compiled and clang is not installed; install the package clang")
    try:
        with made_whole(compiled, compiled.with_name(f"{compiled.name}.{os.getpid()}")) as partial:
            subprocess.run([clang, *_FLAGS, "-c", str(source), "-o", str(partial)], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as error:
        raise IotwinError(f"clang cannot compile {source.name}: {error.stderr.strip().splitlines()[0]}") from None
    return compiled
