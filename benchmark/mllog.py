"""MLPerf logging lines (``:::MLLOG {json}``), as the real workloads print them, so that a trace of the twin has phases."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

Value = float | int | str | None


class MlLog:
    """Writes MLLOG lines to a stream, each flushed at once, naming the `rank` if given; nowhere when the stream is None."""

    def __init__(self, stream: TextIO | None, rank: int | None = None) -> None:
        self._stream = stream
        self._rank: dict[str, Value] = {} if rank is None else {"rank": rank}

    @contextmanager
    def interval(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the start and the end of the block; a block that fails has no end."""
        self._line("INTERVAL_START", key, None, metadata)
        yield
        self._line("INTERVAL_END", key, None, metadata)

    def point(self, key: str, value: Value) -> None:
        """Log that `key` has `value` now."""
        self._line("POINT_IN_TIME", key, value, {})

    def _line(self, event_type: str, key: str, value: Value, metadata: dict[str, Value]) -> None:
        if self._stream is None:
            return
        now_ns = time.time_ns()
        entry = {
            "namespace": "", "time_ms": now_ns // 1_000_000, "time_ns": now_ns, "event_type": event_type,
            "key": key, "value": value, "metadata": {**metadata, **self._rank},
        }  # fmt: skip
        # One write of one whole line: print would send the line end apart on an unbuffered stream.
        self._stream.write(f":::MLLOG {json.dumps(entry)}\n")
        self._stream.flush()
