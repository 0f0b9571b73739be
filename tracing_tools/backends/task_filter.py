"""Constants that configure probes/filter.h, which decides in the kernel which tasks are traced."""

import os
import struct

from iotwin.tracing_tools.backend_base import Scope

SECTION = ".rodata.filter"  # section in which probes/tasks.h declares the constants
IN_TREE = b"\1"  # value of traced processes in the map `tree`
STRAY = 1  # value in the map `strays` for a process that left the job's cgroup and still runs
_LAYOUT = struct.Struct("<QiIII")


def constants(scope: Scope) -> dict[str, int]:
    """Return the filter's constants for `scope` by name, in the order of their declaration in C. `tracer_pid` is this process."""
    return {
        "target_cgroup": scope.cgroup_id,
        "target_level": scope.cgroup_level,
        "entered_by_exec": int(scope.entered_by_exec),
        "tracer_pid": os.getpid(),
        "follows_job": int(scope.follows_job),
    }


def packed_constants(scope: Scope) -> bytes:
    """Return the filter's constants for `scope` as the bytes of the section SECTION."""
    return _LAYOUT.pack(*constants(scope).values())
