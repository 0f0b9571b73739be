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
from iotwin.trace_store.raw.file_table import readable
from iotwin.trace_store.raw.records import NAME_INHERITED, NAME_OPENED, read_names
from iotwin.trace_store.schema import GROUP_OF_OP, OP_GROUPS
from iotwin.trace_store.syscalls import NUMBER_OF_OP
from iotwin.tracing_tools.recorder.live_phases import LivePhases

_EVERY_NS = 1_000_000_000
_TOP_FILES = 8
_MAX_FILES = 100_000  # number of files whose names and bytes are stored; calls on others count only in the rates
_BUCKETS_PER_OCTAVE = 8
_BUCKETS = 64 * _BUCKETS_PER_OCTAVE

_IDENTITY = np.dtype([("device", "<u4"), ("inode", "<u8")])
_GROUPS = [*OP_GROUPS, "other"]
_GROUP_OF_NUMBER = np.full(1024, len(_GROUPS) - 1, np.int64)
for _op, _number in NUMBER_OF_OP.items():
    _GROUP_OF_NUMBER[_number] = _GROUPS.index(GROUP_OF_OP.get(_op, "other"))
_READ, _WRITE = _GROUPS.index("read"), _GROUPS.index("write")


def warm_up() -> None:
    """Import all modules that drawing requires, before the process becomes a user who may be unable to read them."""
    if not sys.stderr.isatty():
        return
    view = LiveView("\u65e5")  # rich loads more tables for a wide character
    with redirect_stderr(io.StringIO()):
        view.draw(1.0, 0)
        view.print_note("")
        view.close()


class LiveView:
    """Collects records and shows the rates of the last second, once a second."""

    def __init__(self, title: str) -> None:
        self._title, self._begin_ns = title, time.monotonic_ns()
        self._names: dict[tuple[int, int], str] = {}
        self._file_bytes: dict[tuple[int, int], int] = {}
        self.phases = LivePhases()
        self._display: Any = None
        self._last_ns = self._begin_ns
        self._clear()

    def _clear(self) -> None:
        self._calls = np.zeros(len(_GROUPS), np.int64)
        self._bytes = np.zeros(len(_GROUPS), np.int64)
        self._latencies = np.zeros((len(_GROUPS), _BUCKETS), np.int64)

    def add_events(self, records: NDArray[np.void]) -> None:
        """Count event records (dtype records.EVENT)."""
        group = _GROUP_OF_NUMBER[records["call_flags_cpu"] & np.uint32(1023)]
        moved = np.maximum(records["result"], 0) * ((group == _READ) | (group == _WRITE))
        bucket = np.log2(np.maximum(records["duration_ns"], 1)) * _BUCKETS_PER_OCTAVE
        self._calls += np.bincount(group, minlength=len(_GROUPS))
        self._bytes += np.bincount(group, weights=moved, minlength=len(_GROUPS)).astype(np.int64)
        cells = group * _BUCKETS + np.minimum(bucket.astype(np.int64), _BUCKETS - 1)
        self._latencies += np.bincount(cells, minlength=self._latencies.size).reshape(self._latencies.shape)
        self._add_files(records["device"][moved > 0], records["inode"][moved > 0], moved[moved > 0])

    def _add_files(self, device: NDArray[np.uint32], inode: NDArray[np.uint64], moved: NDArray[np.int64]) -> None:
        identity = np.empty(len(moved), _IDENTITY)
        identity["device"], identity["inode"] = device, inode
        unique, inverse = np.unique(identity, return_inverse=True)
        sums = np.bincount(inverse.ravel(), weights=moved, minlength=len(unique))
        for key, size in zip(unique.tolist(), sums.tolist(), strict=True):  # one iteration per file, not per record
            if key in self._file_bytes or len(self._file_bytes) < _MAX_FILES:
                self._file_bytes[key] = self._file_bytes.get(key, 0) + int(size)

    def add_names(self, content: bytes | memoryview) -> None:
        """Store the names of opened files that the name records in `content` hold."""
        for record in read_names(bytes(content)):
            if record.type in (NAME_OPENED, NAME_INHERITED) and len(self._names) < _MAX_FILES:
                self._names.setdefault((record.device, record.inode), readable(record.text))

    def due_s(self) -> float:
        """Return the seconds until the next refresh is due; negative if it is overdue."""
        return (self._last_ns + _EVERY_NS - time.monotonic_ns()) / 1e9

    def refresh(self, lost: Mapping[str, int]) -> None:
        """If a refresh is due, show the counts since the last one. `lost`: number of events lost so far, by cause."""
        now = time.monotonic_ns()
        if self.due_s() > 0:
            return
        seconds = (now - self._last_ns) / 1e9
        if sys.stderr.isatty():
            self.draw(seconds, sum(lost.values()))
        else:
            show_line(self._line(seconds, sum(lost.values())))
        self._last_ns = now
        self._clear()

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
            for name, group in (("read", _READ), ("write", _WRITE))
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
            moved = f"{format_size(self._bytes[group] / seconds)}" if group in (_READ, _WRITE) else ""
            times = (self._percentile(group, share) for share in (0.5, 0.99))
            rates.add_row(_GROUPS[group], f"{self._calls[group] / seconds:.0f}", moved, *times)
        files = Table("read and written so far", "file")
        for key, size in sorted(self._file_bytes.items(), key=lambda item: -item[1])[:_TOP_FILES]:
            files.add_row(format_size(size), Text(self._names.get(key, f"inode {key[1]}")))
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
        return format_duration(2 ** ((bucket + 0.5) / _BUCKETS_PER_OCTAVE))
