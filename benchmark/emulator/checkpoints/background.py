"""Take the snapshot of a checkpoint, write the checkpoint concurrently with training, and record the files.

A snapshot is the copy of the state in memory from which an asynchronous checkpoint is written.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import Duration


class Written(NamedTuple):
    """One checkpoint file that was written or read back: its name, size and time."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # time until the file has its final name, including fsync


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
        try:
            end = partial(self.set_result, work())
        except BaseException as error:
            end = partial(self.set_exception, error)
        self.took = Took(time.monotonic() - begin, time.thread_time() + emulated_s)
        end()


class EmulatedSnapshot:
    """Takes the snapshots of a rank. Each takes `seconds`, or if that is None, the time of copying its bytes."""

    def __init__(self, seconds: Duration | None, seed: int, rank: int) -> None:
        self._rank = rank
        self._time = None if seconds is None else DrawnTime(seconds, seed, Purpose.SNAPSHOT)
        self._taken = threading.Event()
        self._taken.set()

    def begin(self) -> None:
        """Announce a snapshot that another thread will take, so that `settle` waits for it."""
        self._taken.clear()

    def take(self, epoch: int, step: int, size_bytes: int, buffer: memoryview) -> None:
        """Sleep for the time of a snapshot, or copy `size_bytes` if no time is configured.

        All copies go through `buffer`, so that the snapshot takes its time but not its memory.
        """
        try:
            if self._time is not None:
                Sleeper().sleep(self._time.seconds(self._rank, epoch, step))
                return
            target = memoryview(bytearray(len(buffer)))
            for _ in range(size_bytes // len(buffer)):
                target[:] = buffer
        finally:
            self._taken.set()

    def settle(self) -> float:
        """Wait until an announced snapshot is taken, and return the seconds of waiting."""
        begin = time.monotonic()
        self._taken.wait()
        return time.monotonic() - begin
