"""The copy of the state that an asynchronous checkpoint is written from: what training waits for."""

import threading

from iotwin.common.numbers.draws import DrawnTime
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import Duration


class EmulatedSnapshot:
    """Takes the snapshots of a rank, at once or concurrently with the next step, each in `seconds` if that is given."""

    def __init__(self, seconds: Duration | None, seed: int, rank: int) -> None:
        self._rank = rank
        self._time = None if seconds is None else DrawnTime(seconds, seed, Purpose.SNAPSHOT)
        self._taken = threading.Event()
        self._taken.set()

    def begin(self) -> None:
        """Announce a snapshot that another thread takes; `settle` waits for it."""
        self._taken.clear()

    def take(self, epoch: int, step: int, size_bytes: int, buffer: memoryview) -> None:
        """Spend the time of a snapshot; without one given, copy `size_bytes`.

        The copy goes through one buffer, so that the snapshot's time is spent but not its memory.
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
        """Wait for an announced snapshot: the weights must not change before."""
        self._taken.wait()
