"""A checkpoint written beside training, and what is known of a file that was written."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Written(NamedTuple):
    """One file of one checkpoint, as it was written, or as it was read back."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # until it stands under its final name, synced if it was to be


class Background:
    """A checkpoint being written by a thread of its own."""

    def __init__(self, work: Callable[[], list[Written]]) -> None:
        self._work = work
        self._written: list[Written] = []
        self._error: BaseException | None = None
        self.seconds = 0.0  # that it took, once it has ended
        # A daemon: at the end of the process its writer decides how long to wait for it.
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._written = self._work()
        except BaseException as error:  # raised by `result`
            self._error = error
        self.seconds = time.monotonic() - begin

    def done(self) -> bool:
        """Return whether it has ended."""
        return not self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """Whether it has ended by an exception."""
        return self._error is not None

    def wait(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def result(self) -> list[Written]:
        """Wait, then return the files or raise what went wrong."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._written
