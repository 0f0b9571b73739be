"""Functions that change this process (name, timers, program, end with its parent) or return its age."""

import ctypes
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29
_STARTTIME_FIELD = 22  # number of the field in /proc/PID/stat; in clock ticks since boot, see proc(5)


def _prctl(option: int, argument: int | bytes) -> None:
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    # A failure loses only precision or a name, never correctness, so it is ignored.
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def sharpen_timers() -> None:
    """Let sleeps end at most 1 microsecond late instead of the default 50. Child processes inherit the setting."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def name_process(name: str) -> None:
    """Set the name of this process in lists of processes."""
    _prctl(_PR_SET_NAME, name.encode())


def die_with_parent(parent_pid: int, number: int) -> None:
    """Have the kernel send this process the signal `number` when its parent dies. If the parent is dead already, exit."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # the parent died before prctl
        os._exit(1)


def become_iotwin(root: str, arguments: Sequence[str]) -> None:
    """Replace this process by the program ``iotwin`` with `arguments`. Its exit status and signals become this process's.

    `root`: the folder that contains the package iotwin.
    """
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", "iotwin", *arguments]
    os.execve(sys.executable, command, os.environ | {"PYTHONPATH": path})  # noqa: S606 - a fixed program, and no shell


def age_s() -> float:
    """Return the seconds since this process was forked (not since its exec), to the precision of the kernel's clock tick."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_ticks = int(fields[_STARTTIME_FIELD - 3])  # `fields` begins with field 3: the text up to ')' is cut off
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")


def shared_memory_bytes() -> int:
    """Return this process's share of memory (PSS), in which a page that N processes map counts 1/N; 0 if it is unknown."""
    try:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)
