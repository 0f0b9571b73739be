"""Copying what a job writes to its log files to our own streams, or to whoever reads along, as the files grow."""

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Sink(Protocol):
    """What takes pieces of a log."""

    def write(self, content: bytes, /) -> Any:
        """Take the next piece."""

    def flush(self) -> None:
        """Pass on what was taken."""


class Tail:
    """Copies what is appended to a log file to a stream."""

    def __init__(self, path: Path, stream: Sink) -> None:
        self._path, self._stream, self._position = path, stream, 0

    def forward(self) -> None:
        """Copy what is new."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            return
        if size > self._position:
            with self._path.open("rb") as log:
                log.seek(self._position)
                content = log.read(size - self._position)
            self._position += len(content)
            # Whoever read our output may have gone (head); the trace is not theirs to end, and the log has it all.
            with contextlib.suppress(BrokenPipeError):
                self._stream.write(content)
                self._stream.flush()


def output_tails(logs: Path) -> list[Tail]:
    """Return what copies the files `stdout` and `stderr` of the directory `logs` to our own."""
    return [Tail(logs / "stdout", sys.stdout.buffer), Tail(logs / "stderr", sys.stderr.buffer)]


def reading_tails(logs: Path, make_reader: Callable[[], Sink]) -> list[Tail]:
    """Return what hands the files `stdout` and `stderr` of the directory `logs` to a reader each."""
    return [Tail(logs / name, make_reader()) for name in ("stdout", "stderr")]
