"""Counts how long checkpoints stall a training loop."""

from collections import deque
from typing import NamedTuple

_UPDATES = 100  # the times of this many latest weight updates are stored


class CheckpointCost(NamedTuple):
    """The cost of one checkpoint, in seconds."""

    snapshot_s: float  # time to copy the state
    total_s: float  # time of the whole call
    call_s: float = 0.0  # time until the writer gets the snapshot


class Stalls:
    """How long a training loop has waited for checkpoints, in seconds."""

    def __init__(self) -> None:
        self.total_s = self.now_s = 0.0
        self.each_s: list[float] = []  # waiting time per checkpoint
        self.update_s: deque[float] = deque(maxlen=_UPDATES)  # duration of weight updates, without waiting time

    def begin_checkpoint(self) -> None:
        """Begin a checkpoint, to which later waits are added."""
        self.each_s.append(0.0)

    def add(self, seconds: float) -> None:
        """Add a wait of `seconds` to the newest checkpoint."""
        self.now_s += seconds
        self.total_s += seconds
        if self.each_s:
            self.each_s[-1] += seconds

    def take(self) -> float:
        """Return the seconds waited since the last call of this method."""
        now_s, self.now_s = self.now_s, 0.0
        return now_s
