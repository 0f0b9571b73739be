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


class Took(NamedTuple):
    """What a checkpoint took beside training: seconds until it was written, and those of them that it worked on a processor."""

    seconds: float
    work_s: float


class Background:
    """A checkpoint being written by a thread of its own, which sleeps for `emulated_s` where the job's works."""

    def __init__(self, work: Callable[[], list[Written]], emulated_s: float = 0.0) -> None:
        self._work, self._emulated_s = work, emulated_s
        self._written: list[Written] = []
        self._error: BaseException | None = None
        self.took = Took(0.0, 0.0)  # once it has ended
        # A daemon: at the end of the process its writer decides how long to wait for it.
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        begin = time.monotonic()
        try:
            self._written = self._work()
        except BaseException as error:  # raised by `result`
            self._error = error
        self.took = Took(time.monotonic() - begin, time.thread_time() + self._emulated_s)

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
