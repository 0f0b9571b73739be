"""Logs the durations of the parts of a step, for the instrumented variants."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iotwin.common.mllog import MlLog, Value


class Parts:
    """Logs an MLLOG line per part of a step, with start (CLOCK_MONOTONIC) and duration in nanoseconds, if `enabled`.

    `settle` waits for a device that computes asynchronously, so that a part does not contain the work of earlier ones. `metadata`
    is added to every line.
    """

    def __init__(self, enabled: bool, settle: Callable[[], None] | None = None, **metadata: Value) -> None:
        self.enabled, self._settle, self._metadata = enabled, settle, metadata

    @contextmanager
    def measure(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the duration of the block under `key`. A block that raises is not logged."""
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
            # Made here, not in __init__: loader processes get a pickled copy of this object, and a stream cannot be pickled.
            log = MlLog(sys.stdout, **self._metadata)
            log.line("INTERVAL_END", key, {"start": start_ns, "duration": duration_ns}, metadata)
