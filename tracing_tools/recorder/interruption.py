"""Pass requests to end (Ctrl-C, SIGTERM, SIGHUP) on to the traced job. However many arrive, iotwin finishes the trace."""

import signal
import time

from iotwin.common.progress import note
from iotwin.common.signals import Requests
from iotwin.common.units import format_duration
from iotwin.tracing_tools.targets.target import TraceTarget

_INSISTED_NS = 5_000_000_000  # how long the job may take to end after the second request


class Interruption:
    """Passes requests to end to the target, from the target's release (`begin`) until its trace is finished (`end`).

    A job that iotwin started receives each request. After the first, the job may take `grace_ns` to end (None: any time); after
    the second, 5 s. The third also ends the recording. If iotwin did not start the target, the first request ends the recording.
    """

    def __init__(self, target: TraceTarget, grace_ns: int | None, notes: list[str]) -> None:
        self._target, self._grace_ns, self._notes = target, grace_ns, notes
        self._requests = Requests()
        self._count = 0
        self._kill_ns: int | None = None

    def begin(self) -> None:
        """Collect requests to end from now on; `heed` handles them."""
        self._requests.collect(even_ignored=not self._target.is_ours)

    def end(self) -> None:
        """Stop collecting; requests to end raise KeyboardInterrupt again."""
        self._requests.restore()

    def heed(self) -> bool:
        """Handle the next request to end, or kill a job whose time is over. Return True if the recording must end now."""
        number = self._requests.take()
        if number is None:
            self._kill_if_due()
            return False
        if not self._target.is_ours:
            self._notes.append("an interrupt ended the trace; its target continues")
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
        if self._count > 2:
            note("interrupted: ending the trace, then waiting for the job")
        elif limit_ns is None:
            note("interrupted: asked the job to end, and waiting for it (Ctrl-C again gives it 5 s)")
        else:
            note(f"interrupted: asked the job to end within {format_duration(limit_ns)}")
        return self._count > 2

    def is_asked(self) -> bool:
        """Take one request (Ctrl-C, SIGTERM or SIGHUP) without passing it on to the job. Return True if there was one."""
        return self._requests.take() is not None

    def _kill_if_due(self) -> None:
        if self._kill_ns is not None and time.monotonic_ns() >= self._kill_ns:
            self._kill_ns = None
            self._notes.append("interrupted: the job did not end in time and was killed")
            note("the job did not end in time: killing it")
            self._target.signal(signal.SIGKILL)
