"""Append binary records to files in raw/ while the job runs; finish.py converts them later.

If the recorder is killed, at most the content of the kernel's ring buffer is lost: each append is one write(2), after which the
records are in the page cache.
"""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from iotwin.common.errors import IotwinError, UsageError, reason_of
from iotwin.common.files import new_folder, open_append, open_new, write_fully
from iotwin.common.removal import remove_file, remove_own
from iotwin.trace_store.manifest import ClockPair, Manifest, write_manifest
from iotwin.trace_store.raw.wall_clock_error import wall_clock_error
from iotwin.trace_store.trace_directory import made_trace, refuse_foreign

RAW = "raw"
EVENTS_FILE = "events.bin"
NAMES_FILE = "names.bin"
GPU_FILE = "gpu.bin"  # exists only if an accelerator was called
BLOCKS_FILE = "blocks.bin"  # exists only if block requests are traced
JOURNAL_FILE = "journal.jsonl"  # clock readings, ledgers, samples and containers, one JSON object per line
LOCK_FILE = "lock"
_RESERVE_FILE = "reserve"
_RESERVE_BYTES = 1 << 16
_CLOCK_READINGS = 50


def read_clocks() -> ClockPair:
    """Read both clocks several times, CLOCK_REALTIME between two readings of CLOCK_MONOTONIC. Return the most exact pair."""
    readings = []
    error = wall_clock_error() or (None, None)
    for _ in range(_CLOCK_READINGS):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        width = (after - before + 1) // 2
        readings.append(ClockPair(before + width, real, width, *error))
    return min(readings, key=lambda reading: reading.uncertainty_ns)


def refuse_unusable(directory: Path, force: bool) -> None:
    """Raise UsageError unless `directory` is new or empty, or holds a trace and `force` is set."""
    if directory.is_symlink():
        raise UsageError(f"{directory} is a symbolic link; give the name of the directory itself")
    if not directory.exists():
        return
    if not directory.is_dir():
        raise UsageError(f"{directory} is a file; choose another name for the trace")
    if not any(directory.iterdir()):
        return
    if is_being_recorded(directory):
        raise UsageError(f"{directory} is being recorded by another iotwin trace; choose another name")
    refuse_foreign(directory)
    if not force:
        raise UsageError(f"{directory} holds a trace already; choose another name or add --force to replace it")


def is_being_recorded(directory: Path) -> bool:
    """Return True if a running recorder has locked the trace at `directory`."""
    try:
        descriptor = os.open(directory / RAW / LOCK_FILE, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EWOULDBLOCK, errno.EACCES)
    finally:
        os.close(descriptor)
    return False


class Recording:
    """An open recording at `directory`. Close it, then convert it by `finish.finish_trace`. Appends are unbuffered.

    From the beginning, the directory contains the manifest and all files that a recovery needs.
    """

    def __init__(self, directory: Path, manifest: Manifest, force: bool = False) -> None:
        refuse_unusable(directory, force)
        self.directory = directory
        self.manifest = manifest
        self.folder = RAW  # folder of the records within the trace's directory
        self.events_written = 0
        self._events = self._names = self._blocks = self._journal = self._lock = -1
        try:
            with made_trace(directory) as made:
                self._open(made)
        except BaseException:
            self.close()
            raise

    def _open(self, directory: Path) -> None:
        raw = directory / RAW
        new_folder(raw)
        new_folder(directory / "logs")
        self._lock = open_append(raw / LOCK_FILE, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._open_files(directory)
        write_manifest(directory, self.manifest)
        # If the recording fills the disk, removing this reserve makes room for the counts of lost events.
        try:
            with open_new(raw / _RESERVE_FILE) as reserve:
                reserve.write(bytes(_RESERVE_BYTES))
        except OSError as error:
            if error.errno != errno.EFBIG:  # a limit on the size of files (ulimit -f, EFBIG) must not stop the job
                raise

    def _open_files(self, directory: Path) -> None:
        self._events = open_append(directory / self.folder / EVENTS_FILE, 0o644)
        self._names = open_append(directory / self.folder / NAMES_FILE, 0o644)
        self._journal = open_append(directory / self.folder / JOURNAL_FILE, 0o644)
        # If a crash of the machine loses the manifest, a recovery uses the copy in the journal.
        self.append_journal("manifest", {"manifest": msgspec.to_builtins(self.manifest)})

    def make_room(self, running: Callable[[], bytes]) -> bool:
        """Return True if later records must go to new files, as in a ring (ring.py). Call this before the backend is drained.

        `running` returns name records of the processes that run now and of their open files.
        """
        return False

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def append_events(self, records: NDArray[np.void]) -> None:
        """Append event records (dtype records.EVENT)."""
        self._append(self._events, records.view(np.uint8).data)
        self.events_written += len(records)

    def append_blocks(self, records: NDArray[np.void]) -> None:
        """Append block requests (dtype records.BLOCK). Even an empty append marks block requests as traced."""
        if self._blocks < 0:
            self._blocks = open_append(self.directory / self.folder / BLOCKS_FILE, 0o644)
        self._append(self._blocks, records.view(np.uint8).data)

    def append_gpu_calls(self, records: NDArray[np.void]) -> None:
        """Append calls of an accelerator's API (dtype records.GPU_CALL)."""
        descriptor = open_append(self.directory / self.folder / GPU_FILE, 0o644)
        try:
            self._append(descriptor, records.view(np.uint8).data)
        finally:
            os.close(descriptor)

    def append_names(self, content: bytes | memoryview) -> None:
        """Append name records as the kernel writes them to a ring buffer."""
        self._append(self._names, memoryview(content))

    def append_journal(self, kind: str, values: dict[str, Any]) -> None:
        """Append one line to the journal: an entry of type `kind` with `values`, which must be JSON values."""
        self._append(self._journal, memoryview(json.dumps({"kind": kind, **values}).encode() + b"\n"))

    def append_clock(self) -> None:
        """Append a reading of CLOCK_MONOTONIC and CLOCK_REALTIME at the same moment to the journal."""
        self.append_journal("clock", msgspec.to_builtins(read_clocks()))

    def _append(self, descriptor: int, content: memoryview) -> None:
        write_all(descriptor, content)

    def release_reserve(self) -> None:
        """Free the reserved disk space. Call this when only the ledger is left to write."""
        remove_file(self.directory / RAW / _RESERVE_FILE)

    def close(self) -> None:
        """Close the files and release the lock."""
        self._close_files()
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def _close_files(self) -> None:
        for descriptor in (self._events, self._names, self._blocks, self._journal):
            if descriptor >= 0:
                os.close(descriptor)
        self._events = self._names = self._blocks = self._journal = -1

    def discard(self) -> None:
        """Close and remove the recording, because the job never started."""
        self.close()
        remove_own(self.directory)


def write_all(descriptor: int, content: memoryview) -> None:
    """Write all of `content` to `descriptor`. Raises IotwinError if a write fails."""
    try:
        write_fully(descriptor, content)
    except OSError as error:
        raise IotwinError(f"the trace cannot be written: {reason_of(error)}") from error
