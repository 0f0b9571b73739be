"""The phases that a job says it is in right now, from what it prints, line by line as it comes."""

from collections.abc import Callable

from tracing_tools.trace.logs.mllog import phase_edge
from tracing_tools.trace.schema import PHASE_NAMES

_MAX_LINE_BYTES = 1 << 16  # what is longer is no line of a log


class LivePhases:
    """The phases of all ranks that have begun and not ended."""

    def __init__(self) -> None:
        self._open: dict[int, dict[str, int | None]] = {}  # rank to phase to the number of its epoch or step

    def add_line(self, line: str) -> None:
        """Learn from a line of the job's output."""
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
        """Return the phases of the lowest rank that is in any, the widest first: 'epoch 2, step 17'; '' when none is."""
        rank = min((rank for rank, phases in self._open.items() if phases), default=None)
        if rank is None:
            return ""
        phases = self._open[rank]
        return ", ".join(
            phase if phases[phase] is None else f"{phase} {phases[phase]}" for phase in PHASE_NAMES if phase in phases
        )


class Lines:
    """Takes a log as it grows, in pieces of any size, and hands on each of its lines once it is whole."""

    def __init__(self, take: Callable[[str], None]) -> None:
        self._take, self._rest = take, b""

    def write(self, content: bytes) -> None:
        """Take the next piece of the log."""
        *lines, self._rest = (self._rest + content).split(b"\n")
        self._rest = self._rest[-_MAX_LINE_BYTES:]
        for line in lines:
            self._take(line.decode(errors="replace"))
