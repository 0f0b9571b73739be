"""Write a checkpoint concurrently with training, and record the files."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple


class Written(NamedTuple):
    """Record of one file of a checkpoint that was written or read back."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # until the file has its final name, including fsync


class Took(NamedTuple):
    """The cost of a checkpoint in the background: seconds until it was written, and seconds of processor time."""

    seconds: float
    work_s: float


class Background(Future[list[Written]]):
    """The files of a checkpoint that a separate thread writes by `work`.

    The thread sleeps `emulated_s` in place of computation by the job, so these seconds count as processor time.
    """

    def __init__(self, work: Callable[[], list[Written]], emulated_s: float = 0.0) -> None:
        super().__init__()
        self.took = Took(0.0, 0.0)  # set before the future is done
        # A daemon thread: at the end of the process, the checkpoint writer decides how long to wait for it.
        threading.Thread(target=self._run, args=(work, emulated_s), name="checkpoint", daemon=True).start()

    def _run(self, work: Callable[[], list[Written]], emulated_s: float) -> None:
        begin = time.monotonic()
        written: list[Written] = []
        failure: BaseException | None = None
        try:
            written = work()
        except BaseException as error:
            failure = error
        self.took = Took(time.monotonic() - begin, time.thread_time() + emulated_s)
        if failure is None:
            self.set_result(written)
        else:
            self.set_exception(failure)
