"""The constants of the one filter, probes/filter.h: which tasks the programs in the kernel let through."""

import os
import struct

from tracing_tools.protocols import Scope

SECTION = ".rodata.filter"  # of probes/tasks.h
STRAY = 1  # the state of a process outside the job's cgroup that still runs
_LAYOUT = struct.Struct("<QiIII")


def constants(scope: Scope) -> dict[str, int]:
    """Return the filter's constants for `scope` by name, in order of declaration; this process is never traced."""
    return {
        "target_cgroup": scope.cgroup_id,
        "target_level": scope.cgroup_level,
        "entered_by_exec": int(scope.entered_by_exec),
        "tracer_pid": os.getpid(),
        "follows_job": int(scope.follows_job),
    }


def packed_constants(scope: Scope) -> bytes:
    """Return the same as they lie in SECTION."""
    return _LAYOUT.pack(*constants(scope).values())
