"""How long the parts of a step take, as the instrumented variants log them."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.mllog import MlLog, Value


class Parts:
    """Logs an MLLOG line per part of a step, with its start and duration in nanoseconds; nothing unless `enabled`.

    `start` is on CLOCK_MONOTONIC, as times in a trace are. `settle`, given for devices that compute asynchronously, waits until
    they have finished their work, so that a part's duration is its own. `metadata` goes into every line.
    """

    def __init__(self, enabled: bool, settle: Callable[[], None] | None = None, **metadata: Value) -> None:
        self.enabled, self._settle, self._metadata = enabled, settle, metadata

    @contextmanager
    def measure(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log how long the block takes under `key`; a block that fails is not logged."""
        if not self.enabled:
            yield
            return
        begin_ns = time.monotonic_ns()
        yield
        if self._settle is not None:
            self._settle()
        self.log(key, begin_ns, time.monotonic_ns() - begin_ns, **metadata)

    def log(self, key: str, start_ns: int, duration_ns: int, **metadata: Value) -> None:
        """Log a part that was timed elsewhere."""
        if self.enabled:
            # Loader processes get a pickled copy of these parts, and no stream can be pickled.
            log = MlLog(sys.stdout, **self._metadata)
            log.line("INTERVAL_END", key, {"start": start_ns, "duration": duration_ns}, metadata)
