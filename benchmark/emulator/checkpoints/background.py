"""A checkpoint written concurrently with training, and the record of a written file."""

import threading
import time
from collections.abc import Callable
from typing import NamedTuple


class Written(NamedTuple):
    """Record of one file of a checkpoint that was written or read back."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # until it stands under its final name, synced if it was to be


class Took(NamedTuple):
    """The cost of a checkpoint in the background: seconds until it was written, and seconds of processor time."""

    seconds: float
    work_s: float


class Background:
    """A checkpoint that a separate thread writes; it sleeps `emulated_s` in place of the job's processor time."""

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
        """Return whether the thread has ended."""
        return not self._thread.is_alive()

    @property
    def failed(self) -> bool:
        """True if the thread has ended with an exception."""
        return self._error is not None

    def wait(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def result(self) -> list[Written]:
        """Wait until the thread has ended, then return its files or raise its exception."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._written
