"""The live view of a traced job: rates, latencies, the busiest files and losses, computed from batches of records.

Once a second, it draws tables if stderr is a terminal, else it prints a line.
"""

import io
import math
import sys
import time
from collections.abc import Mapping
from contextlib import redirect_stderr
from typing import Any

import numpy as np
from numpy.typing import NDArray

from iotwin.common.progress import show_line
from iotwin.common.terminal import console
from iotwin.common.units import counted, format_duration, format_size
from iotwin.tracing_tools.recorder.live_phases import LivePhases
from iotwin.tracing_tools.recorder.live_tally import BUCKETS, BUCKETS_PER_OCTAVE, GROUP_OF_OP, GROUPS, READ, WRITE, LiveTally

_EVERY_NS = 1_000_000_000
_TOP_FILES = 8


def warm_up() -> None:
    """Import all modules that drawing requires, before the process becomes a user who may be unable to read them."""
    if not sys.stderr.isatty():
        return
    view = LiveView("\u65e5", LiveTally())  # rich loads more tables for a wide character
    with redirect_stderr(io.StringIO()):
        view.draw(1.0, 0)
        view.print_note("")
        view.close()


class LiveView:
    """Shows the rates of the last second, once a second."""

    def __init__(self, title: str, tally: LiveTally, is_shown: bool = True) -> None:
        self._title, self._begin_ns, self._tally = title, time.monotonic_ns(), tally
        self.phases, self._is_shown = LivePhases(), is_shown
        self._display: Any = None
        self._last_ns = self._begin_ns
        self._before = self._sums()
        self._calls, self._bytes, self._latencies = self._before

    def _sums(self) -> tuple[NDArray[np.int64], ...]:
        """Return the calls, bytes and latencies so far, of shape (GROUPS,), (GROUPS,) and (GROUPS, BUCKETS)."""
        tally, groups = self._tally, GROUP_OF_OP[[op for _, op in self._tally.pairs]]
        sums = (np.zeros(len(GROUPS), np.int64), np.zeros(len(GROUPS), np.int64), np.zeros((len(GROUPS), BUCKETS), np.int64))
        for found, rows in zip(sums, (tally.calls.sum(1), tally.bytes.sum(1), tally.latencies), strict=True):
            np.add.at(found, groups, rows)
        return sums

    def due_s(self) -> float:
        """Return the seconds until the next refresh is due; negative if it is overdue."""
        return (self._last_ns + _EVERY_NS - time.monotonic_ns()) / 1e9

    def refresh(self, lost: Mapping[str, int]) -> None:
        """If a refresh is due, show the counts since the last one. `lost`: number of events lost so far, by cause."""
        now = time.monotonic_ns()
        if self.due_s() > 0:
            return
        seconds, self._last_ns = (now - self._last_ns) / 1e9, now
        if not self._is_shown:
            return
        sums = self._sums()
        self._calls, self._bytes, self._latencies = (new - old for new, old in zip(sums, self._before, strict=True))
        if sys.stderr.isatty():
            self.draw(seconds, sum(lost.values()))
        else:
            show_line(self._line(seconds, sum(lost.values())))
        self._before = sums

    def print_note(self, text: str) -> None:
        """Print `text`, a note of the recorder, above the tables."""
        if self._display is None:
            show_line(text)
        else:
            self._display.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Stop drawing. The last tables remain on the terminal."""
        if self._display is not None:
            self._display.stop()

    def _elapsed(self) -> str:
        phases = self.phases.current()
        return f"{(time.monotonic_ns() - self._begin_ns) / 1e9:.0f} s" + (f", {phases}" if phases else "")

    def _line(self, seconds: float, lost: int) -> str:
        moves = ", ".join(
            f"{name} {format_size(self._bytes[group] / seconds)}/s in {self._calls[group] / seconds:.0f} calls/s"
            f" (median {self._percentile(group, 0.5)}, 99 % {self._percentile(group, 0.99)})"
            for name, group in (("read", READ), ("write", WRITE))
        )
        return f"{self._elapsed()}: {moves}, all {self._calls.sum() / seconds:.0f} calls/s, {lost} lost"

    def draw(self, seconds: float, lost: int) -> None:
        """Draw the tables of the last `seconds` on stderr. `lost`: number of events lost so far."""
        from rich.console import Group
        from rich.live import Live
        from rich.table import Table
        from rich.text import Text

        rates = Table("calls", "per second", "bytes per second", "median", "99 %", title_justify="left")
        for group in np.flatnonzero(self._calls).tolist():
            moved = f"{format_size(self._bytes[group] / seconds)}" if group in (READ, WRITE) else ""
            times = (self._percentile(group, share) for share in (0.5, 0.99))
            rates.add_row(GROUPS[group], f"{self._calls[group] / seconds:.0f}", moved, *times)
        files = Table("read and written so far", "file")
        for key, size in sorted(self._tally.file_bytes.items(), key=lambda item: -item[1])[:_TOP_FILES]:
            files.add_row(format_size(size), Text(self._tally.name(key) or f"inode {key[0]}"))
        state = Text(f"{self._title}: {self._elapsed()}, ", style="bold")
        state.append(f"{counted(lost, 'event')} LOST" if lost else "none lost", style="bold red" if lost else "bold")
        if self._display is None:
            self._display = Live(console=console(stderr=True), auto_refresh=False)
            self._display.start()
        self._display.update(Group(state, rates, files), refresh=True)

    def _percentile(self, group: int, share: float) -> str:
        counts = np.cumsum(self._latencies[group])
        if counts[-1] == 0:
            return "-"
        bucket = int(np.searchsorted(counts, math.ceil(share * int(counts[-1]))))
        return format_duration(2 ** ((bucket + 0.5) / BUCKETS_PER_OCTAVE))
