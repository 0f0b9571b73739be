"""A recording without end that keeps its newest records: it consists of segments, the oldest of which are removed.

Each segment is a folder that is complete by itself: records, a journal, and the processes and open files at its begin. So removed
segments are not needed later, with one exception: calls in flight need the names of the last removed segment, which remain.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from iotwin.common.files import new_folder, write_whole
from iotwin.common.removal import remove_listed
from iotwin.trace_store.manifest import Manifest, Ring
from iotwin.trace_store.raw.record_files import NAMES_FILE, RAW, Recording
from iotwin.trace_store.raw.records import EVENT

RUNNING_FILE = "running.bin"  # name records of the processes and open files at the begin of a segment
_PREFIX = "segment-"
_SEGMENTS = 16
_CARRIED = ("container", "ledger")  # kinds of journal entries that a segment repeats from those before it


@dataclass
class _Segment:
    number: int
    size_bytes: int = 0
    events: int = 0
    end_ns: int = 0  # all records of the segment are of calls that ended before this time


class RingRecording(Recording):
    """A recording of at most `size_bytes` plus the backend's buffers. The manifest's `ring` counts the removed records."""

    def __init__(self, directory: Path, manifest: Manifest, force: bool, size_bytes: int) -> None:
        manifest.ring = Ring(size_bytes)
        self._ring, self._segment_bytes = manifest.ring, size_bytes // _SEGMENTS
        self._current, self._older = _Segment(0), list[_Segment]()
        self._carried: dict[tuple[str, Any], tuple[str, dict[str, Any]]] = {}
        super().__init__(directory, manifest, force)

    def _open_files(self, directory: Path) -> None:
        self.folder = f"{RAW}/{_name(self._current.number)}"
        new_folder(directory / self.folder)
        super()._open_files(directory)

    def _append(self, descriptor: int, content: memoryview) -> None:
        super()._append(descriptor, content)
        self._current.size_bytes += len(content)
        self._current.events += len(content) // EVENT.itemsize if descriptor == self._events else 0

    def append_journal(self, kind: str, values: dict[str, Any]) -> None:
        """Append one line to the journal of the current segment."""
        if kind in _CARRIED:
            self._carried[kind, values.get("cgroup")] = kind, values
        super().append_journal(kind, values)

    def make_room(self, running: Callable[[], bytes]) -> bool:
        """If the current segment is full, begin a new one, and remove the oldest if there are too many."""
        if self._current.size_bytes < self._segment_bytes:
            return False
        self._current.end_ns = time.monotonic_ns()
        self._older.append(self._current)
        self._close_files()
        self._current = _Segment(self._current.number + 1)
        self._open_files(self.directory)
        self.append_clock()
        for kind, values in [*self._carried.values()]:
            self.append_journal(kind, values)
        names = running()
        write_whole(self.directory / self.folder / RUNNING_FILE, names, below=self.directory)
        self._current.size_bytes += len(names)
        self._remove_oldest()
        return True

    def _remove_oldest(self) -> None:
        removed = []
        # Leave room for the current segment, and for the names of the last removed one.
        while self._older and sum(each.size_bytes for each in self._older) > self._ring.size_bytes - 2 * self._segment_bytes:
            removed.append(self._older.pop(0))
        for segment in removed:
            self._ring.overwritten_events += segment.events
            self._ring.overwritten_bytes += segment.size_bytes
            self._ring.kept_from_ns = segment.end_ns
        # The journal counts segments before they are removed. So a recovery ignores what a kill left of them.
        first = self._older[0].number if self._older else self._current.number
        self.append_journal("ring", msgspec.to_builtins(self._ring) | {"first": first})
        for segment in removed:
            remove_listed(self.directory, [f"{RAW}/{_name(segment.number - 1)}"])
            folder = f"{RAW}/{_name(segment.number)}"
            names = {path.name for path in (self.directory / folder).iterdir()} - {NAMES_FILE, RUNNING_FILE}
            remove_listed(self.directory, [f"{folder}/{name}" for name in names])


def _name(number: int) -> str:
    return f"{_PREFIX}{number:09d}"


def record_folders(raw: Path) -> list[Path]:
    """Return the folders that hold the records of the recording in `raw`, the oldest first: its segments, or `raw` itself."""
    return sorted(raw.glob(f"{_PREFIX}*")) or [raw]


def folders_from(folders: list[Path], first: int) -> list[Path]:
    """Return those of `folders` that are not segments before the number `first`, which a ring has overwritten."""
    return [folder for folder in folders if not folder.name.startswith(_PREFIX) or folder.name >= _name(first)]
