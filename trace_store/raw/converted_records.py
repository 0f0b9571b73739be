"""After the job, convert a backend's own files in raw/ to the records of a recording, completely or not at all."""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
from numpy.typing import NDArray

from iotwin.common.files import open_whole, write_whole
from iotwin.common.untrusted_files import read_foreign
from iotwin.trace_store.raw.record_files import EVENTS_FILE, NAMES_FILE, write_all

_BEGAN_FILE = "names.began"  # a copy of the name records that were written before the job started
_MOST_NAMES_BYTES = 1 << 30


class ConvertedRecords:
    """Collects converted records. At the end of the `with` block, they become the event and name records of the recording.

    Name records from before the job remain. If the block raises an error, nothing changes. An interrupted conversion can be
    repeated with the same result.
    """

    def __init__(self, raw: Path) -> None:
        self.events_written = 0
        began = raw / _BEGAN_FILE
        if not began.exists():
            write_whole(began, read_foreign(raw / NAMES_FILE, _MOST_NAMES_BYTES, follow=False), below=raw.parent)
        self._open = ExitStack()
        files = [self._open.enter_context(open_whole(raw / name, below=raw.parent)) for name in (EVENTS_FILE, NAMES_FILE)]
        self._files = {name: file.fileno() for name, file in zip((EVENTS_FILE, NAMES_FILE), files, strict=True)}
        self.append_names(read_foreign(began, _MOST_NAMES_BYTES, follow=False))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open.__exit__(kind, error, trace)

    def append_events(self, records: NDArray[np.void]) -> None:
        """Append event records (dtype records.EVENT)."""
        write_all(self._files[EVENTS_FILE], records.view(np.uint8).data)
        self.events_written += len(records)

    def append_names(self, content: bytes) -> None:
        """Append name records, as `records.pack_name` returns them."""
        write_all(self._files[NAMES_FILE], memoryview(content))
