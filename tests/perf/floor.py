"""The least cost of any tracer that uses the two tracepoints of system calls: the floor of libbpf's and bcc's cost."""

import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from iotwin.tracing_tools.backends.bpf_object import BpfObject

_PROGRAMS = {"nothing": "clock", "clock": "nothing"}  # and those left out for it


@contextmanager
def floor_attached(kind: str, directory: Path) -> Iterator[None]:
    """Attach a pair of programs to all system calls: `kind` nothing or clock, which reads it at entry and at exit."""
    compiled = directory / "floor.bpf.o"
    if not compiled.exists():
        source = Path(__file__).with_name("floor.bpf.c")
        subprocess.run(["clang", "-O2", "-g", "-target", "bpf", "-c", source, "-o", compiled], check=True)
    with closing(BpfObject(compiled)) as programs:
        for point in ("enter", "exit"):
            programs.leave_out(f"{_PROGRAMS[kind]}_at_{point}")
        programs.load()
        programs.attach()
        yield
