"""Decide when the evaluations and checkpoints of a run are due, in which order, and when the run stops."""

import time
from collections import Counter
from typing import NamedTuple

from iotwin.benchmark.emulator.checkpoints.frequency import Frequency
from iotwin.benchmark.emulator.ranks import CHECKPOINT, STOP
from iotwin.common.errors import UsageError
from iotwin.workload_yaml import Config
from iotwin.workloads.policies.cadence import LoopPosition, Policy, checkpoint_policy, evaluation_cadence


class Due(NamedTuple):
    """Work that is due after a step or an epoch."""

    evaluation: bool = False
    checkpoints: int = 0  # number of checkpoints to write


NOTHING = Due()


class Schedule:
    """Decides for one rank of a run. The loop calls it after every step, and sets `flags` to those that the ranks exchanged.

    `evaluates`: the run evaluates, and there are samples for it. `frequency`: decides by measurements when checkpoints are due.
    """

    def __init__(self, config: Config, evaluates: bool, frequency: Frequency | None) -> None:
        twin = config.twin.checkpoint
        self.step = 0  # training steps of the whole run so far
        self.epochs = range(1 if config.twin.resume is None else config.twin.resume.epoch, config.train.epochs + 1)
        self.evaluates_first = config.twin.evaluation.steps_before if evaluates else 0  # steps before the first epoch
        self.saves_first = config.checkpoint.checkpoint_after_step == 0 and config.twin.resume is None
        self.checkpoints_first = config.twin.evaluation.after_checkpoint  # if both are due
        self.logs_checkpoints = not twin.asynchronous if twin.logged is None else twin.logged
        self.frequency = frequency
        self._resume, self._has_policy = config.twin.resume, twin.policy is not None
        after_epochs, after_steps = evaluation_cadence(config.evaluation)
        self._evaluate_after_epochs = after_epochs if evaluates else None
        self._evaluate_after_steps = after_steps if evaluates else None
        self._saves = config.workflow.checkpoint
        self._save_after = checkpoint_policy(config.checkpoint, twin)
        self._saves_at = Counter(twin.after_steps or [])
        self._seconds_between = twin.seconds_between
        self._by_time: Policy | Frequency = Policy()
        self._deadline = float("inf")
        self.flags = 0  # STOP and CHECKPOINT, if any rank set them after the last step
        self.epoch_ended = True  # the last step was the last of its epoch
        self.blocks = False  # the log divides epochs into blocks, since evaluations or checkpoints may come between steps
        self._epoch_ends_at = 0

    def start(self, limit_s: float | None) -> None:
        """Start the clock for the end of the run after `limit_s`, and for checkpoints by time."""
        now = time.monotonic()
        if limit_s is not None:
            self._deadline = now + limit_s
        self._by_time = self.frequency or Policy(seconds=self._seconds_between, now=now)
        by_steps = self._save_after.within_epochs or self._by_time.within_epochs or self._has_policy
        self.blocks = self._evaluate_after_steps is not None or (self._saves and self.logs_checkpoints and by_steps)

    def begin_epoch(self, epoch: int, steps: int) -> tuple[int, int]:
        """Return (steps of the epoch that an earlier run did, those of them whose batches are read again).

        `steps`: number of steps of the epoch. Raises UsageError if twin.resume.step is larger.
        """
        resume, done, replayed = self._resume, 0, 0
        if resume is not None and resume.epoch == epoch:
            if resume.step > steps:
                raise UsageError(f"twin.resume.step: {resume.step} is after the last of the {steps} steps of an epoch")
            done = 0 if resume.mode == "full" else resume.step
            replayed = done if resume.mode == "replay_data" else 0
            self.step = (epoch - 1) * steps + done
        self._epoch_ends_at = self.step + steps - done
        self.epoch_ended = done == steps
        return done, replayed

    def wishes(self) -> int:
        """Return the flags of this rank after the present step: STOP at the deadline, CHECKPOINT if one is due by time."""
        now = time.monotonic()
        return (STOP if now >= self._deadline else 0) | (CHECKPOINT if self._by_time.time_is_up(now) else 0)

    def after_step(self, epoch: int) -> Due:
        """Count a training step of `epoch` and return the work that is due after it."""
        self.step += 1
        self.epoch_ended = self.step == self._epoch_ends_at
        evaluation = self._evaluate_after_steps is not None and self._evaluate_after_steps.due(self.step)
        checkpoints = 0
        if self._saves and not (self.epoch_ended and self._has_policy):  # a policy leaves ends of epochs to `after_epoch`
            if self.flags & CHECKPOINT:
                self._save_after.ask()
            checkpoints = self._checkpoints(epoch, False)
        return Due(evaluation, checkpoints) if evaluation or checkpoints else NOTHING

    def after_last_block(self, epoch: int) -> Due:
        """Return the checkpoints at the end of `epoch` that belong to its last block, since the log has no phase for them."""
        return Due(False, self._checkpoints(epoch, True) if self._ends_in_block(epoch) else 0)

    def after_epoch(self, epoch: int) -> Due:
        """Return the work that is due after the last block of `epoch`."""
        return Due(self._evaluates_after(epoch), 0 if self._ends_in_block(epoch) else self._checkpoints(epoch, True))

    def saved(self, seconds: float) -> None:
        """Record that training waited `seconds` for a checkpoint."""
        if self.frequency is not None:
            self.frequency.saved(seconds)
        self._by_time.restart(time.monotonic())

    def _checkpoints(self, epoch: int, epoch_ended: bool) -> int:
        reason = self._save_after.due(LoopPosition(epoch, self.step, epoch_ended), time.monotonic())
        return max(1, self._saves_at[self.step]) if self._saves and reason is not None else 0

    def _evaluates_after(self, epoch: int) -> bool:
        return self._evaluate_after_epochs is not None and self._evaluate_after_epochs.due(epoch)

    def _ends_in_block(self, epoch: int) -> bool:
        return not self.logs_checkpoints and not self._evaluates_after(epoch)
