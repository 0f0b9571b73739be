"""What requests to end do to a traced job: each is passed on, as it is, and the trace is finished whatever their number."""

import signal
import time

from common.progress import note
from common.signals import Requests
from common.units import format_duration
from tracing_tools.protocols import TraceTarget

_INSISTED_NS = 5_000_000_000  # what a job has that is asked a second time


class Interruption:
    """Passes requests to end on to the target, from its release (`begin`) until its trace is finished (`end`).

    A job of ours gets every one. After the first it has `grace_ns` to end, or as long as it needs without that; after the second
    5 seconds; the third ends the recording as well. Of what runs anyway the first one ends the recording.
    """

    def __init__(self, target: TraceTarget, grace_ns: int | None, notes: list[str]) -> None:
        self._target, self._grace_ns, self._notes = target, grace_ns, notes
        self._requests = Requests()
        self._count = 0
        self._kill_ns: int | None = None

    def begin(self) -> None:
        """From now on requests wait for `heed`."""
        self._requests.collect(even_ignored=not self._target.is_ours)

    def end(self) -> None:
        """From now on requests raise KeyboardInterrupt again."""
        self._requests.restore()

    def heed(self) -> bool:
        """Do what is due; return whether the recording is to end now."""
        number = self._requests.take()
        if number is None:
            self._kill_if_due()
            return False
        if not self._target.is_ours:
            self._notes.append("the trace was ended by an interrupt; what it traced goes on")
            return True
        if self._target.has_ended():
            note("leaving the remaining processes untraced")
            return True
        self._count += 1
        if self._count == 1:
            self._notes.append("interrupted: the job was asked to end early")
        self._target.signal(number)
        limit_ns = self._grace_ns if self._count == 1 else _INSISTED_NS
        if limit_ns is not None:
            due_ns = time.monotonic_ns() + limit_ns
            self._kill_ns = due_ns if self._kill_ns is None else min(self._kill_ns, due_ns)
        note(self._told())
        return self._count > 2

    def is_asked(self) -> bool:
        """Whether a request waits; takes it."""
        return self._requests.take() is not None

    def _told(self) -> str:
        if self._count > 2:
            return "interrupted: ending the trace, then waiting for the job"
        limit_ns = self._grace_ns if self._count == 1 else _INSISTED_NS
        if limit_ns is None:
            return "interrupted: asked the job to end, and waiting for it (Ctrl-C again gives it 5 s)"
        return f"interrupted: asked the job to end within {format_duration(limit_ns)}"

    def _kill_if_due(self) -> None:
        if self._kill_ns is not None and time.monotonic_ns() >= self._kill_ns:
            self._kill_ns = None
            self._notes.append("interrupted: the job did not end in time and was killed")
            note("the job did not end in time: killing it")
            self._target.signal(signal.SIGKILL)
