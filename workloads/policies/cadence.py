"""Decides when evaluations and checkpoints are due: after epochs, steps or seconds, at listed steps, or on a signal."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # not imported at run time, because jobs that use a policy read no YAML
    from iotwin.workload_yaml import Checkpoint, Evaluation, TwinCheckpoint


class Cadence(NamedTuple):
    """A series of epochs or steps after which an action is due: `first`, then every `every`-th. Epochs and steps count from 1."""

    first: int
    every: int
    also: int = -1  # one more epoch or step outside the series, at which the action is due; -1: none

    def due(self, number: int) -> bool:
        """Return True if the action is due after epoch or step `number`."""
        return number == self.also or (number >= self.first and (number - self.first) % self.every == 0)


class LoopPosition(NamedTuple):
    """The position of a training loop: the epoch and the step of the run, both from 1, and whether an epoch ends here.

    `batch`: index in the epoch of the next batch, for rules that list pairs of epoch and batch.
    """

    epoch: int
    step: int
    epoch_ended: bool = False
    batch: int = -1


class Policy:
    """Decides after each step and each epoch whether an action, such as a checkpoint, is due.

    It is due after the epochs for which `epochs` returns True, after the steps of the cadence `steps`, every `seconds`, or after
    the steps `listed`. An entry of `listed` may also be a pair of an epoch and a batch.
    """

    def __init__(
        self,
        epochs: Callable[[int], bool] | None = None,
        steps: Cadence | None = None,
        seconds: float | None = None,
        listed: Collection[int | tuple[int, int]] = (),
        now: float = 0.0,
    ) -> None:
        self._epochs, self._steps, self._seconds, self._listed = epochs, steps, seconds, frozenset(listed)
        self._asked = False
        self.restart(now)

    @property
    def within_epochs(self) -> bool:
        """True if a rule can be due within an epoch."""
        return self._steps is not None or self._seconds is not None or bool(self._listed)

    def ask(self) -> None:
        """Make the action due at the next decision. A signal handler may call this."""
        self._asked = True

    def due(self, position: LoopPosition, now: float) -> str | None:
        """Return the reason why the action is due at `position` and at the time `now` in seconds, None if it is not due.

        The reason is the first that applies of: signal, epoch, steps, list, seconds. Any reason restarts the period of `seconds`.
        """
        reason = self._reason(position, now)
        if reason is not None:
            self._asked = False
            self.restart(now)
        return reason

    def restart(self, now: float) -> None:
        """Restart the period of `seconds` at `now`, for example at the end of a checkpoint."""
        self._due_s = now + self._seconds if self._seconds is not None else float("inf")

    def saved(self, seconds: float, now: float) -> None:
        """Record that a checkpoint has taken `seconds`, and has ended at `now`."""
        self.restart(now)

    def _reason(self, position: LoopPosition, now: float) -> str | None:
        if self._asked:
            return "signal"
        if position.epoch_ended:
            return "epoch" if self._epochs is not None and self._epochs(position.epoch) else None
        if self._steps is not None and self._steps.due(position.step):
            return "steps"
        if position.step in self._listed or (position.epoch, position.batch) in self._listed:
            return "list"
        return "seconds" if self.time_is_up(now) else None

    def time_is_up(self, now: float) -> bool:
        """Return True if the period of `seconds` is over, without restarting it."""
        return now >= self._due_s


def evaluation_cadence(section: "Evaluation") -> tuple[Cadence | None, Cadence | None]:
    """Return (cadence of epochs, cadence of steps) after which evaluations are due. One of the two is None."""
    if section.steps_between_evals < 1:
        return Cadence(section.eval_after_epoch, section.epochs_between_evals), None
    first = section.eval_after_step if section.eval_after_step > 0 else section.steps_between_evals
    return None, Cadence(first, section.steps_between_evals)


def checkpoint_policy(section: "Checkpoint", twin: "TwinCheckpoint") -> Policy:
    """Return the policy for checkpoints after epochs and steps, by which every rank decides alike.

    The policy has no rule for `twin.seconds_between` and `twin.policy`, since one rank decides on these for all.
    """
    if twin.seconds_between is not None:
        return Policy()
    also = section.checkpoint_after_step
    if section.steps_between_checkpoints < 1 or twin.policy is not None:
        epochs: Callable[[int], bool] = Cadence(section.checkpoint_after_epoch, section.epochs_between_checkpoints).due
        if twin.after is not None and section.steps_between_checkpoints < 1:
            epochs = frozenset(twin.after).__contains__
        return Policy(epochs=epochs, listed=[also] if also > 0 else [])
    if twin.after is not None:
        return Policy(listed=[*twin.after, *([also] if also > 0 else [])])
    return Policy(steps=Cadence(section.steps_between_checkpoints, section.steps_between_checkpoints, also))
