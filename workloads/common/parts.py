"""Logs how long each part of a training step takes, for the instrumented variants of jobs."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from iotwin.common.mllog import MlLog, Value


class Parts:
    """If `enabled`, logs an MLLOG line for each part of a step: its start (CLOCK_MONOTONIC) and duration, both in nanoseconds.

    `settle` waits until a device that computes asynchronously is done. It is called at the end of each part, so that no part
    contains the work of an earlier one. `metadata` is added to every line.
    """

    def __init__(self, enabled: bool, settle: Callable[[], None] | None = None, **metadata: Value) -> None:
        self.enabled, self._settle, self._metadata = enabled, settle, metadata

    @contextmanager
    def measure(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the duration of the `with` block under `key`. If the block raises an error, nothing is logged."""
        if not self.enabled:
            yield
            return
        begin_ns = time.monotonic_ns()
        yield
        if self._settle is not None:
            self._settle()
        self.log(key, begin_ns, time.monotonic_ns() - begin_ns, **metadata)

    def log(self, key: str, start_ns: int, duration_ns: int, **metadata: Value) -> None:
        """Log a part that the caller has timed."""
        if self.enabled:
            # Not an attribute: loader processes get a pickled copy of this object, and a stream cannot be pickled.
            log = MlLog(sys.stdout, **self._metadata)
            log.line("INTERVAL_END", key, {"start": start_ns, "duration": duration_ns}, metadata)
