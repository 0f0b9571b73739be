"""The moments of a trace that pictures mark: when a process was killed, and when a resumed run had restored its state."""

import signal
from typing import NamedTuple

from iotwin.trace_store.reader import Trace

KILLED, RESUMED = "killed", "resumed"
RESTORE_PART = "restore"  # the part that iotwin detrain run --log-phases logs when it restores a checkpoint's state


class Moment(NamedTuple):
    """A moment in CLOCK_MONOTONIC nanoseconds, and what happened then: KILLED or RESUMED."""

    time_ns: int
    what: str


def moments(trace: Trace) -> list[Moment]:
    """Return the moments that pictures mark, in order of time: kills of processes, and ends of restores after a resumption.

    A killed loader gives no moment, since the job itself kills its loaders.
    """
    processes = trace.processes()
    killed = processes[(processes["exit_status"] == -signal.SIGKILL) & (processes["role"].astype(str) != "loader")]
    found = [Moment(int(time_ns), KILLED) for time_ns in killed["exit_ns"].dropna().unique()]
    parts = trace.step_parts()
    if parts is not None:
        own = parts[(parts["name"].astype(str) == RESTORE_PART) & (parts["rank"].fillna(0) == parts["rank"].fillna(0).min())]
        found += [Moment(int(time_ns), RESUMED) for time_ns in own["start_ns"] + own["duration_ns"]]
    return sorted(found)
