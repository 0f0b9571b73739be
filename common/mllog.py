"""MLPerf logging lines (``:::MLLOG {json}``): one writer for real workloads and emulator, and the meaning of the keys."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

Value = float | int | str | None

# Key of an interval (without _start, _stop, _end) and the phase of a trace that it is. "epoch", "block" and "training" are all
# training of one kind or another.
PHASE_OF_KEY = {
    "init": "init",
    "epoch": "epoch",
    "block": "block",
    "training": "block",
    "eval": "evaluation",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "step": "step",
}

FOR_TRACERS = "iotwin"  # the emulator's namespace; output_keeper knows it, too


class MlLog:
    """Writes MLLOG lines to a stream and flushes each, so that none is lost or late. Does nothing if the stream is None.

    `metadata` goes into every line. Lines of the namespace FOR_TRACERS do not appear on the terminal of whoever traces the job.
    """

    def __init__(self, stream: TextIO | None, namespace: str = "", /, **metadata: Value) -> None:
        self._stream, self._namespace, self._metadata = stream, namespace, metadata

    @property
    def enabled(self) -> bool:
        """Return whether lines are written anywhere."""
        return self._stream is not None

    def point(self, key: str, value: Value, **metadata: Value) -> None:
        """Log that `key` has `value` now."""
        self.line("POINT_IN_TIME", key, value, metadata)

    def start(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` begins."""
        self.line("INTERVAL_START", key, None, metadata)

    def end(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` ends."""
        self.line("INTERVAL_END", key, None, metadata)

    @contextmanager
    def interval(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the start and the end of the block; a block that fails has no end."""
        self.start(key, **metadata)
        yield
        self.end(key, **metadata)

    def line(self, event_type: str, key: str, value: Value | dict[str, int], metadata: Mapping[str, Value]) -> None:
        """Write one line, dated now.

        It is one write of one whole line: ranks and loader processes share a file or pipe and must not tear each other's lines.
        """
        if self._stream is None:
            return
        now_ns = time.time_ns()
        entry = {
            "namespace": self._namespace,
            "time_ms": now_ns // 1_000_000,
            "time_ns": now_ns,  # ours: milliseconds are coarse for the steps of a small job
            "event_type": event_type,
            "key": key,
            "value": value,
            "metadata": {**metadata, **self._metadata},
        }
        self._stream.write(f":::MLLOG {json.dumps(entry)}\n")
        self._stream.flush()
