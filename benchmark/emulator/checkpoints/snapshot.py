"""Emulate the snapshot, the copy of the state in memory from which an asynchronous checkpoint is written."""

import threading

from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import Duration


class EmulatedSnapshot:
    """Takes the snapshots of a rank, each in `seconds`; None: in the time of copying its bytes."""

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

    def settle(self) -> None:
        """Wait until an announced snapshot is taken. The weights must not change before."""
        self._taken.wait()
