"""Decide when the evaluations and checkpoints of a run are due, in which order, and when the run stops."""

from collections import Counter
from typing import NamedTuple

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.ranks import CHECKPOINT, STOP
from iotwin.common.errors import UsageError
from iotwin.common.units import counted
from iotwin.workload_yaml import Config
from iotwin.workloads.policies.cadence import LoopPosition, checkpoint_policy, evaluation_cadence
from iotwin.workloads.policies.checkpoint_frequency import Frequency


class Due(NamedTuple):
    """Work that is due after a step or an epoch."""

    evaluation: bool = False
    checkpoints: int = 0  # number of checkpoints to write


NOTHING = Due()


class Period:
    """Makes a checkpoint due `seconds` after `now`, and then after each checkpoint."""

    def __init__(self, seconds: float, now: float) -> None:
        self._seconds, self._due_s = seconds, now + seconds

    def time_is_up(self, now: float) -> bool:
        """Return True if a checkpoint is due."""
        return now >= self._due_s

    def saved(self, stall_s: float) -> None:
        """Restart the period, since a checkpoint was written."""
        self._due_s = waits.now_s() + self._seconds


class Schedule:
    """Decides for one rank what is due after each step and epoch.

    The training loop calls `after_step` after every step, and sets `flags` to the flags that the ranks exchanged.

    `evaluates`: the run evaluates, and there are samples for it. `frequency`: decides by measurements when checkpoints are due.
    The clock for checkpoints by time and for the end of the run, after `limit_s`, starts now.
    """

    def __init__(self, config: Config, evaluates: bool, frequency: Frequency | None, limit_s: float | None) -> None:
        twin, now = config.twin.checkpoint, waits.now_s()
        self.step = 0  # training steps of the whole run so far
        self.flags = 0  # STOP and CHECKPOINT, if any rank set them after the last step
        self.epoch_ended = True  # the last step was the last of its epoch
        self.in_last_block = self.after_epoch = NOTHING  # due at the end of the epoch: in its last block, after that block
        self._epoch_ends_at = 0
        self._deadline = float("inf") if limit_s is None else now + limit_s
        self._resume, self._has_policy, self._saves = config.twin.resume, twin.policy is not None, config.workflow.checkpoint
        first = 1 if self._resume is None or self._resume.mode == "replay_all" else self._resume.epoch
        self.epochs = range(first, config.train.epochs + 1)
        self.saves_first = config.checkpoint.checkpoint_after_step == 0 and self._resume is None
        # True: if an evaluation and a checkpoint are due together, the checkpoint comes first.
        self.checkpoints_first = config.twin.evaluation.after_checkpoint
        self.logs_checkpoints = not twin.asynchronous if twin.logged is None else twin.logged
        self._evaluate_after_epochs, self._evaluate_after_steps = (
            evaluation_cadence(config.evaluation) if evaluates else (None, None)
        )
        self._save_after, self._saves_at = checkpoint_policy(config.checkpoint, twin), Counter(twin.after or [])
        self.frequency = frequency
        self.by_time = frequency or (None if twin.seconds_between is None else Period(twin.seconds_between, now))
        by_steps = self._has_policy or self.by_time is not None or self._save_after.within_epochs
        # The log divides epochs into blocks, since evaluations or checkpoints may come between steps.
        self.blocks = self._evaluate_after_steps is not None or (self._saves and self.logs_checkpoints and by_steps)

    def begin_epoch(self, epoch: int, steps: int) -> tuple[int, int]:
        """Return (steps of the epoch that an earlier run did, how many of these steps have their batches read again).

        `steps`: number of steps of the epoch. Raises UsageError if twin.resume.step is larger.
        """
        resume, done, replayed = self._resume, 0, 0
        if resume is not None and resume.epoch == epoch:
            if resume.step > steps:
                raise UsageError(f"twin.resume.step: {resume.step} is after the last of the {counted(steps, 'step')} of an epoch")
            done = 0 if resume.mode == "full" else resume.step
            replayed = done if resume.mode in ("replay_data", "replay_all") else 0
            self.step = (epoch - 1) * steps + done
        elif resume is not None and epoch < resume.epoch:
            self.step = self._epoch_ends_at = epoch * steps
            self.in_last_block = self.after_epoch = NOTHING
            return steps, steps
        self._epoch_ends_at = self.step + steps - done
        self.epoch_ended = done == steps
        self.in_last_block = self.after_epoch = NOTHING
        if self.epoch_ended:
            self._end_epoch(epoch)
        return done, replayed

    def wishes(self) -> int:
        """Return the flags that this rank sets after the present step: STOP at the deadline, CHECKPOINT if one is due by time."""
        now = waits.now_s()
        checkpoint = self.by_time is not None and self.by_time.time_is_up(now)
        return (STOP if now >= self._deadline else 0) | (CHECKPOINT if checkpoint else 0)

    def after_step(self, epoch: int) -> Due:
        """Count a training step of `epoch` and return the work that is due after it."""
        self.step += 1
        self.epoch_ended = self.step == self._epoch_ends_at
        evaluation = self._evaluate_after_steps is not None and self._evaluate_after_steps.due(self.step)
        checkpoints = 0
        if self._saves and not (self.epoch_ended and self._has_policy):  # a policy leaves ends of epochs to `_end_epoch`
            if self.flags & CHECKPOINT:
                self._save_after.ask()
            checkpoints = self._checkpoints(epoch, False)
        if self.epoch_ended:
            self._end_epoch(epoch)
        return Due(evaluation, checkpoints) if evaluation or checkpoints else NOTHING

    def _end_epoch(self, epoch: int) -> None:
        """Set the work that is due at the end of `epoch`.

        Checkpoints belong to the last block if the log has no phase for them and no evaluation comes before them.
        """
        evaluation = self._evaluate_after_epochs is not None and self._evaluate_after_epochs.due(epoch)
        checkpoints = self._checkpoints(epoch, True)
        in_block = not self.logs_checkpoints and not evaluation
        self.in_last_block = Due(False, checkpoints if in_block else 0)
        self.after_epoch = Due(evaluation, 0 if in_block else checkpoints)

    def _checkpoints(self, epoch: int, epoch_ended: bool) -> int:
        reason = self._save_after.due(LoopPosition(epoch, self.step, epoch_ended), waits.now_s())
        return max(1, self._saves_at[self.step]) if self._saves and reason is not None else 0
