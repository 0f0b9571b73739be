"""Write MLPerf logging lines (``:::MLLOG {json}``) for real workloads and the emulator, and map their keys to phases."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TextIO

Value = float | int | str | None

# Maps the key of an MLLOG interval, without _start, _stop and _end, to the name of a phase in a trace.
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

JUMPS = "virtual_clock_jumps"  # key of a point: jumps of a virtual clock, as "NS,NS" (real CLOCK_MONOTONIC, length) and blanks
JUMPS_OF_LINE = 64  # most jumps of a line, which must be shorter than PIPE_BUF to reach a pipe whole

# Key of a point: the bytes that a job's tensors take at the time `at_ns` (CLOCK_MONOTONIC) of the point. The point memory_budget
# has the limit.
TENSOR_BYTES = "tensor_bytes"

# Key of a point: what a step would cost under other memory budgets, by a simulation. Budgets descend from the most memory that
# it takes. Each is "BYTES,NS,OPERATIONS,EVICTIONS", separated by blanks: time and number of repeated operations, and evictions.
SIMULATED_BUDGETS = "simulated_budgets"

FOR_TRACERS = "iotwin"  # namespace of lines that only tracers read; the tracer's output_keeper hides them from the terminal


class MlLog:
    """Writes MLLOG lines to `stream` and flushes each, so that no line is lost or late. Does nothing if `stream` is None.

    `metadata` is part of every line. A tracer does not show lines of the namespace FOR_TRACERS on the terminal. These lines also
    have CLOCK_MONOTONIC, by which a tracer orders them among the calls.
    """

    def __init__(self, stream: TextIO | None, namespace: str = "", /, **metadata: Value) -> None:
        self._stream, self._namespace, self._metadata = stream, namespace, metadata

    @property
    def enabled(self) -> bool:
        """Return True if there is a stream to write lines to."""
        return self._stream is not None

    def point(self, key: str, value: Value, **metadata: Value) -> None:
        """Log that the quantity `key` has `value` now."""
        self.line("POINT_IN_TIME", key, value, metadata)

    def start(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` begins."""
        self.line("INTERVAL_START", key, None, metadata)

    def end(self, key: str, **metadata: Value) -> None:
        """Log that the interval `key` ends."""
        self.line("INTERVAL_END", key, None, metadata)

    @contextmanager
    def interval(self, key: str, **metadata: Value) -> Iterator[None]:
        """Log the start and the end of the `with` block as the interval `key`. If the block fails, the end is not logged."""
        self.start(key, **metadata)
        yield
        self.end(key, **metadata)

    def line(self, event_type: str, key: str, value: Value | dict[str, int], metadata: Mapping[str, Value]) -> None:
        """Write one line with the present time by one write(2), since ranks and loader processes share the stream's file."""
        if self._stream is None:
            return
        now_ns, monotonic_ns = time.time_ns(), time.monotonic_ns()
        entry = {
            "namespace": self._namespace,
            "time_ms": now_ns // 1_000_000,
            "time_ns": now_ns,  # an addition to MLPerf's format, whose milliseconds are too coarse for the steps of a small job
            "event_type": event_type,
            "key": key,
            "value": value,
            "metadata": {**metadata, **self._metadata},
        }
        if self._namespace == FOR_TRACERS:
            entry["monotonic_ns"] = monotonic_ns
        self._stream.write(f":::MLLOG {json.dumps(entry)}\n")
        self._stream.flush()
