"""Take the snapshot of a checkpoint, write the checkpoint concurrently with training, and record the files.

A snapshot is the copy of the state in memory from which an asynchronous checkpoint is written.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import NamedTuple

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.threads import ClockThread
from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.workload_yaml import Duration
from iotwin.workloads.policies.checkpoint_frequency import Took


class Written(NamedTuple):
    """One checkpoint file that was written or read back: its name, size and time."""

    epoch: int
    name: str
    size_bytes: int
    start_ns: int
    duration_ns: int  # time until the file has its final name, including fsync


class Background(Future[list[Written]]):
    """A future of the files of a checkpoint. A separate thread calls `work`, which writes the files.

    `work` sleeps for `emulated_s` seconds where the job would compute, so `took` counts them as processor time.
    """

    def __init__(self, work: Callable[[], list[Written]], emulated_s: float = 0.0) -> None:
        super().__init__()
        self.took = Took(0.0, 0.0)  # set before the future is done
        # A daemon thread: at the end of the process, the checkpoint writer decides how long to wait for it.
        ClockThread(partial(self._run, work, emulated_s), "checkpoint")

    def _run(self, work: Callable[[], list[Written]], emulated_s: float) -> None:
        begin = waits.now_s()
        try:
            end = partial(self.set_result, work())
        except BaseException as error:
            end = partial(self.set_exception, error)
        self.took = Took(waits.now_s() - begin, time.thread_time() + emulated_s)
        end()
        waits.changed()


class EmulatedSnapshot:
    """Takes the snapshots of a rank. Each lasts `seconds` or, if that is None, as long as copying the snapshot's bytes."""

    def __init__(self, seconds: Duration | None, seed: int, rank: int) -> None:
        self._rank = rank
        self._time = None if seconds is None else DrawnTime(seconds, seed, Purpose.SNAPSHOT)
        self._taken = waits.Flag()
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
                waits.new_sleeper().sleep(self._time.seconds(self._rank, epoch, step))
                return
            target = memoryview(bytearray(len(buffer)))
            for _ in range(size_bytes // len(buffer)):
                target[:] = buffer
        finally:
            self._taken.set()

    def settle(self) -> float:
        """Wait until the snapshot that `begin` announced is taken. Return the seconds of waiting, about 0 if none is awaited."""
        begin = waits.now_s()
        self._taken.wait()
        return waits.now_s() - begin
