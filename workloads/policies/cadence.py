"""When evaluation runs and checkpoints are written: after epochs, steps or seconds, at listed steps, or on a signal."""

from collections.abc import Collection
from typing import NamedTuple


class Cadence(NamedTuple):
    """First after number `first`, then every `every`; numbers (of epochs, or of steps) count from 1."""

    first: int
    every: int
    also: int = -1  # one more, outside the row

    def due(self, number: int) -> bool:
        """Return whether it is time after `number`."""
        return number == self.also or (number >= self.first and (number - self.first) % self.every == 0)


class LoopPosition(NamedTuple):
    """Where a loop stands: the epoch, the steps of the whole run, and whether the epoch has just ended. Numbers count from 1."""

    epoch: int
    step: int
    epoch_ended: bool = False


class Policy:
    """Decides after every step, and after every epoch, by whichever of its rules are given."""

    def __init__(
        self,
        epochs: Cadence | None = None,
        steps: Cadence | None = None,
        seconds: float | None = None,
        listed: Collection[int] = (),
        now: float = 0.0,
    ) -> None:
        self._epochs, self._steps, self._seconds, self._listed = epochs, steps, seconds, frozenset(listed)
        self._asked = False
        self.restart(now)

    @property
    def within_epochs(self) -> bool:
        """Whether it can be time in the middle of an epoch, unasked."""
        return self._steps is not None or self._seconds is not None or bool(self._listed)

    def ask(self) -> None:
        """Make the next decision a yes; a signal handler may call it."""
        self._asked = True

    def due(self, position: LoopPosition, now: float) -> str | None:
        """Return why it is time at `position` and `now` (seconds of one clock), None when it is not.

        The reason is the first of signal, epoch, steps, list, seconds. Whatever it is, the next one by time is a whole period
        after `now`.
        """
        reason = self._reason(position, now)
        if reason is not None:
            self._asked = False
            self.restart(now)
        return reason

    def restart(self, now: float) -> None:
        """Count the seconds from `now` on: where a checkpoint took long, the next one is not due at its end."""
        self._due_s = now + self._seconds if self._seconds is not None else float("inf")

    def _reason(self, position: LoopPosition, now: float) -> str | None:
        if self._asked:
            return "signal"
        if position.epoch_ended:
            return "epoch" if self._epochs is not None and self._epochs.due(position.epoch) else None
        if self._steps is not None and self._steps.due(position.step):
            return "steps"
        if position.step in self._listed:
            return "list"
        return "seconds" if self.time_is_up(now) else None

    def time_is_up(self, now: float) -> bool:
        """Return whether time alone asks for one, without deciding it: for one rank that then asks all of them."""
        return now >= self._due_s
