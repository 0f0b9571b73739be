"""Recording: fixed-size binary records appended under raw/ while the job runs, ready to be finished or recovered.

A kill at any instant loses at most what the kernel still held in its ring buffer: every append is one write(2), so what was
drained is in the page cache and survives the recorder.
"""

import errno
import fcntl
import json
import os
import shutil
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from common.errors import IotwinError, UsageError
from tracing_tools.trace.manifest import ClockPair, Manifest, write_manifest
from tracing_tools.trace.trace_directory import made_trace, refuse_foreign

RAW = "raw"
EVENTS_FILE = "events.bin"
NAMES_FILE = "names.bin"
GPU_FILE = "gpu.bin"  # only when an accelerator was called
BLOCKS_FILE = "blocks.bin"  # only when block requests are traced
JOURNAL_FILE = "journal.jsonl"  # clock pairs, ledgers and samples, one JSON object a line
LOCK_FILE = "lock"
_RESERVE_FILE = "reserve"
_RESERVE_BYTES = 1 << 16


def read_clocks(tries: int = 50) -> ClockPair:
    """Read CLOCK_REALTIME between two readings of CLOCK_MONOTONIC; the narrowest of `tries` sandwiches."""
    best: ClockPair | None = None
    for _ in range(tries):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        real = time.clock_gettime_ns(time.CLOCK_REALTIME)
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        width = (after - before + 1) // 2
        if best is None or width < best.uncertainty_ns:
            best = ClockPair(before + width, real, width)
    assert best is not None  # noqa: S101 - tries is positive
    return best


def refuse_unusable(directory: Path, force: bool) -> None:
    """Raise UsageError unless a trace can be written at `directory`: new or empty, or an earlier trace and `force`."""
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
    """Whether a live recorder holds the trace at `directory`."""
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
    """An open recording at `directory`; appends are unbuffered. Close it, then finish it with `finish.finish_trace`.

    The directory appears under its name with its manifest and all files that a recovery needs, so that a kill leaves either a
    recording or nothing of that name.
    """

    def __init__(self, directory: Path, manifest: Manifest, force: bool = False) -> None:
        refuse_unusable(directory, force)
        self.directory = directory
        self.manifest = manifest
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
        raw.mkdir(parents=True)
        (directory / "logs").mkdir()
        self._lock = os.open(raw / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._events = os.open(raw / EVENTS_FILE, flags, 0o644)
        self._names = os.open(raw / NAMES_FILE, flags, 0o644)
        self._journal = os.open(raw / JOURNAL_FILE, flags, 0o644)
        write_manifest(directory, self.manifest)
        # Should the manifest be lost with the machine, the journal still says what this is.
        self.append_journal("manifest", {"manifest": msgspec.to_builtins(self.manifest)})
        # Kept so that a recording that fills the disk can still say what it lost.
        (raw / _RESERVE_FILE).write_bytes(bytes(_RESERVE_BYTES))

    def __enter__(self) -> "Recording":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def append_events(self, records: NDArray[np.void]) -> None:
        """Append event records (dtype records.EVENT)."""
        write_all(self._events, records.view(np.uint8).data)
        self.events_written += len(records)

    def append_blocks(self, records: NDArray[np.void]) -> None:
        """Append block requests (dtype records.BLOCK); a call without any says that they are traced."""
        if self._blocks < 0:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._blocks = os.open(self.directory / RAW / BLOCKS_FILE, flags, 0o644)
        write_all(self._blocks, records.view(np.uint8).data)

    def append_gpu_calls(self, records: NDArray[np.void]) -> None:
        """Append calls of an accelerator's API (dtype records.GPU_CALL)."""
        with (self.directory / RAW / GPU_FILE).open("ab", buffering=0) as file:
            write_all(file.fileno(), records.view(np.uint8).data)

    def append_names(self, content: bytes | memoryview) -> None:
        """Append name records as they lie in the ring buffer."""
        write_all(self._names, memoryview(content))

    def append_journal(self, kind: str, values: dict[str, Any]) -> None:
        """Append one journal line; `values` must be JSON."""
        write_all(self._journal, memoryview(json.dumps({"kind": kind, **values}).encode() + b"\n"))

    def append_clock(self) -> None:
        """Append a reading of both clocks."""
        self.append_journal("clock", msgspec.to_builtins(read_clocks()))

    def release_reserve(self) -> None:
        """Give back the space kept for the last words, once nothing but those will be written."""
        (self.directory / RAW / _RESERVE_FILE).unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files and let go of the lock."""
        for descriptor in (self._events, self._names, self._blocks, self._journal, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._events = self._names = self._blocks = self._journal = self._lock = -1

    def discard(self) -> None:
        """Remove everything, for a job that never started."""
        self.close()
        shutil.rmtree(self.directory, ignore_errors=True)


def write_all(descriptor: int, content: memoryview) -> None:
    """Write all of `content`; IotwinError when the file takes no more."""
    while content:
        try:
            content = content[os.write(descriptor, content) :]
        except OSError as error:
            raise IotwinError(f"the trace cannot be written: {error.strerror}") from error
