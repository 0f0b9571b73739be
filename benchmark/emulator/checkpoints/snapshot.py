"""The copy of the state that an asynchronous checkpoint is written from: what training waits for."""

import threading

from benchmark.config import Config
from common.numbers.draws import DrawnTime
from common.numbers.keyed import Purpose
from common.numbers.sleeper import Sleeper


class Snapshot:
    """Takes the snapshots of a rank, at once or beside the next step."""

    def __init__(self, config: Config, rank: int) -> None:
        given = config.twin.checkpoint.snapshot_time
        self._rank = rank
        self._time = None if given is None else DrawnTime(given, config.train.seed, Purpose.SNAPSHOT)
        self._taken = threading.Event()
        self._taken.set()

    def begin(self) -> None:
        """Let training go on until `settle`, while another thread takes it."""
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
        """Wait for the one that goes on beside a step: before the weights change."""
        self._taken.wait()
