"""Determine the current phases of a running job from the log lines that it prints."""

from collections.abc import Callable

from iotwin.trace_store.logs.job_log import phase_edge
from iotwin.trace_store.schema import PHASE_NAMES

_MAX_LINE_BYTES = 1 << 16  # most bytes of a log line


class LivePhases:
    """The current phases of all ranks: the phases that have begun and not ended."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, int | None]] = {}  # index of the epoch or step, by rank and phase

    def add_line(self, line: str) -> None:
        """Update the phases by a line of the job's output."""
        edge = phase_edge(line)
        if edge is None:
            return
        phase, starts, rank, number = edge
        phases = self._open.setdefault(rank, {})
        if starts:
            phases[phase] = number
        else:
            phases.pop(phase, None)

    def current(self) -> str:
        """Return the phases of the lowest rank in any phase, outermost first: 'epoch 2, step 17'; '' if no rank is in one."""
        rank = min((rank for rank, phases in self._open.items() if phases), default=None)
        if rank is None:
            return ""
        phases = self._open[rank]
        return ", ".join(
            phase if phases[phase] is None else f"{phase} {phases[phase]}" for phase in PHASE_NAMES if phase in phases
        )


class Lines:
    """Splits a log that arrives in pieces into lines, and passes each complete line to `take`."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._rest = take, b""

    def write(self, content: bytes) -> None:
        """Add the next piece of the log."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-_MAX_LINE_BYTES:]
        for line in lines:
            self._take(line.decode(errors="replace"))
