"""Settings of this process in the Linux kernel: its name, its timer slack, and that it dies with its parent."""

import ctypes
import os
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29
_STARTTIME_FIELD = 22  # of /proc/PID/stat, in clock ticks since boot; see proc(5)


def _prctl(option: int, argument: int | bytes) -> None:
    value = ctypes.c_char_p(argument) if isinstance(argument, bytes) else ctypes.c_ulong(argument)
    # A refusal costs precision or a name, never correctness, so it is not an error.
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def sharpen_timers() -> None:
    """Let sleeps end within a microsecond of their time instead of the default 50; children inherit it."""
    _prctl(_PR_SET_TIMERSLACK, 1)


def name_process(name: str) -> None:
    """Let this process be called `name` in lists of processes."""
    _prctl(_PR_SET_NAME, name.encode())


def die_with_parent(parent_pid: int, number: int) -> None:
    """Have the kernel send this process the signal `number` when its parent dies; end it if that has happened already."""
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent_pid:  # it died before it could be watched
        os._exit(1)


def age_s() -> float:
    """Return the seconds since this process was started (since its exec's fork), to the kernel's clock tick."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    started_ticks = int(fields[_STARTTIME_FIELD - 3])  # the two fields up to ')' are gone, and fields count from 1
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_ticks / os.sysconf("SC_CLK_TCK")
