"""The job's own log: MLPerf logging lines (``:::MLLOG {json}``) on stdout, flushed one by one so that none is lost or late."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

Value = float | int | str | None


class MlLog:
    """Writes MLLOG lines if `enabled` (rank 0 does). Interval keys are init, run, epoch, block, training, eval and checkpoint."""

    def __init__(self, enabled: bool = True) -> None:
        self._enabled = enabled

    def point(self, key: str, value: Value, **metadata: Value) -> None:
        """Log that `key` has `value` now."""
        self._line("POINT_IN_TIME", key, value, metadata)

    def start(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` begins."""
        self._line("INTERVAL_START", key, None, metadata)

    def end(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` ends."""
        self._line("INTERVAL_END", key, None, metadata)

    @contextmanager
    def interval(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the start and the end of the block; a block that fails has no end."""
        self.start(key, **metadata)
        yield
        self.end(key, **metadata)

    def _line(self, event_type: str, key: str, value: Value, metadata: dict[str, Value]) -> None:
        if self._enabled:
            write_line(event_type, key, value, metadata)


def write_line(event_type: str, key: str, value: Value | dict[str, int], metadata: dict[str, Value]) -> None:
    """Write one MLLOG line, dated now, to stdout at once.

    It is one write of one whole line: ranks and loader processes share a file or pipe and must not tear each other's lines.
    """
    # time_ns is ours: milliseconds are coarse beside the steps of a small job.
    now_ns = time.time_ns()
    entry = {
        "namespace": "", "time_ms": now_ns // 1_000_000, "time_ns": now_ns, "event_type": event_type,
        "key": key, "value": value, "metadata": metadata,
    }  # fmt: skip
    sys.stdout.write(f":::MLLOG {json.dumps(entry)}\n")
    sys.stdout.flush()
