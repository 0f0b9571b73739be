"""Counts the seconds for which checkpoints stall a training loop."""

from collections import deque
from typing import NamedTuple

_UPDATES = 100  # latest weight updates whose times are kept


class CheckpointCost(NamedTuple):
    """The cost of one checkpoint, in seconds."""

    snapshot_s: float  # of copying the state
    total_s: float  # of the whole call
    call_s: float = 0.0  # until the snapshot was handed to the writer


class Stalls:
    """The seconds that a training loop has waited for checkpoints."""

    def __init__(self) -> None:
        self.total_s = self.now_s = 0.0
        self.each_s: list[float] = []  # per checkpoint
        self.update_s: deque[float] = deque(maxlen=_UPDATES)  # of weight updates, without their waits

    def begin_checkpoint(self) -> None:
        """Count later waits for a new checkpoint."""
        self.each_s.append(0.0)

    def add(self, seconds: float) -> None:
        """Add a wait for the newest checkpoint."""
        self.now_s += seconds
        self.total_s += seconds
        if self.each_s:
            self.each_s[-1] += seconds

    def take(self) -> float:
        """Return the seconds waited since the last call."""
        now_s, self.now_s = self.now_s, 0.0
        return now_s
