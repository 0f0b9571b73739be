"""Sources of the probes, and compiled eBPF programs. A wheel contains these programs; else clang compiles them at first use."""

import re
import shutil
import subprocess
from pathlib import Path

from iotwin.common.errors import IotwinError
from iotwin.common.files import rename, scratch_folder
from iotwin.common.removal import remove_file
from iotwin.tracing_tools.probes.compilation import clang_command, object_name

_DIRECTORY = Path(__file__).parent
BCC_SOURCE = _DIRECTORY / "syscalls.bcc.c"  # libbcc compiles this source for each trace
BPFTRACE_EVENTS = _DIRECTORY / "io_events.bt"
PRELOAD_SOURCE = _DIRECTORY / "preload.c"  # cc compiles this source for each trace
_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)


def text_with_headers(source: Path) -> str:
    """Return the text of the C file `source`, with the first ``#include "..."`` of each header replaced by the header's text."""
    seen: set[str] = set()

    def text_of(path: Path) -> str:
        return _INCLUDE.sub(lambda line: header(line[1]), path.read_text())

    def header(name: str) -> str:
        if name in seen:
            return ""
        seen.add(name)
        return text_of(source.with_name(name))

    return text_of(source)


def _compiled(program: str) -> Path:
    return _DIRECTORY / object_name(program, _DIRECTORY)


def uncompiled_reason(program: str = "syscalls") -> str | None:
    """Return why the eBPF program `program` cannot be compiled, None if it can or is compiled already."""
    if _compiled(program).exists() or shutil.which("clang"):
        return None
    return "the eBPF programs are not compiled and clang is not installed; install the package clang"


def compiled_probes(program: str = "syscalls") -> Path:
    """Return the path of the compiled eBPF program `program`. If none matches the present sources, compile it first.

    Raises IotwinError if clang is required but missing, or fails.
    """
    compiled = _compiled(program)
    if compiled.exists():
        return compiled
    if reason := uncompiled_reason(program):
        raise IotwinError(reason)
    try:
        with scratch_folder(_DIRECTORY) as scratch:
            made = scratch / compiled.name
            subprocess.run(clang_command(program, _DIRECTORY, made), check=True, capture_output=True, text=True)
            rename(made, compiled)
    except subprocess.CalledProcessError as error:
        raise IotwinError(f"clang cannot compile {program}.bpf.c: {error.stderr.strip().splitlines()[0]}") from None
    for outdated in set(_DIRECTORY.glob(f"{program}.*bpf.o")) - {compiled}:
        remove_file(outdated)
    return compiled
