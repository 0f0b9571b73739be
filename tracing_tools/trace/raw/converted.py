"""Conversion of what a backend left in raw/ in its own format into records, after the job: all of it or nothing."""

import os
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from common.files import write_whole
from tracing_tools.trace.raw.recording import EVENTS_FILE, NAMES_FILE, write_all

_BEGAN_FILE = "names.began"  # the names that were known before the job ran


class ConvertedRecords:
    """Collects records; at the end of the block they replace the recording's events, and names follow those known before the job.

    If the block raises, nothing is replaced. However often a conversion is cut off, the next one gives the same.
    """

    def __init__(self, raw: Path) -> None:
        self._raw, self.events_written = raw, 0
        began = raw / _BEGAN_FILE
        if not began.exists():
            write_whole(began, (raw / NAMES_FILE).read_bytes())
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        self._files = {name: os.open(raw / f"{name}.partial", flags, 0o644) for name in (EVENTS_FILE, NAMES_FILE)}
        self.append_names(began.read_bytes())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for name, descriptor in self._files.items():
            os.close(descriptor)
            if error is None:
                (self._raw / f"{name}.partial").replace(self._raw / name)

    def append_events(self, records: NDArray[np.void]) -> None:
        """Append event records (dtype records.EVENT)."""
        write_all(self._files[EVENTS_FILE], records.view(np.uint8).data)
        self.events_written += len(records)

    def append_names(self, content: bytes) -> None:
        """Append name records."""
        write_all(self._files[NAMES_FILE], memoryview(content))
