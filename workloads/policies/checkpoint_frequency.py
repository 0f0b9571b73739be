"""Decide when checkpoints are due, from the measured costs of steps and checkpoints, as CheckFreq jobs do.

`Frequency` times the first steps, measures a checkpoint, plans the interval from both, and then lets a controller correct it.
`MeasuredPolicy` lets it decide for a job whose training waits for each checkpoint.
"""

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple, Protocol

from iotwin.workloads.policies.adaptive_interval import AIMED, CheckpointProfile, Controller, plan
from iotwin.workloads.policies.cadence import LoopPosition, Policy
from iotwin.workloads.policies.goodput import FailingJob, goodput

_WARM_UP = 5  # number of first steps that are not counted
_PROBES = 2  # checkpoints before the plan; the first one only warms up
_WRITES = 3  # number of latest writes whose median is used


class Took(NamedTuple):
    """The cost of a checkpoint in the background: seconds until it was written, and seconds of processor time."""

    seconds: float
    work_s: float


class FrequencySettings(Protocol):
    """The settings of the policy, as in the section `CheckpointPolicy` of a workload's YAML."""

    overhead: float  # time that checkpoints may add, as a share of the steps' time
    mtbf: float | None  # mean time between failures in seconds
    profile_steps: int  # steps timed before the first checkpoint that the policy takes


@dataclass(frozen=True)
class Decided:
    """The decisions of a run, and the measurements behind them."""

    intervals: tuple[tuple[int, int], ...]  # (step of the run, steps between checkpoints from that step on)
    step_s: float
    stall_s: float  # time that training waited for the measured checkpoint
    write_s: float  # median time of the three latest writes
    in_flight: int

    def goodput_steps_per_s(self, mtbf_s: float) -> float:
        """Return the useful steps per second if a failure occurs every `mtbf_s` seconds.

        It assumes that loading a checkpoint takes as long as writing it.
        """
        job = FailingJob(self.step_s, self.stall_s + self.write_s, self.write_s, self.intervals[-1][1], self.in_flight)
        return goodput("checkfreq" if self.in_flight == 1 else "pccheck", job, 1 / mtbf_s).steps_per_s


class Frequency:
    """Decides when a run's checkpoints are due. The run reports every step, checkpoint and completed write to this object.

    `on_processors`: the job trains on the same processors that write, so the processor time of writes counts as a cost.
    """

    def __init__(self, policy: FrequencySettings, in_flight: int, on_processors: bool = False) -> None:
        self._policy, self._in_flight, self._on_processors = policy, in_flight, on_processors
        self._steps = 0
        self._timed: list[float] = []
        self._writes: deque[float] = deque(maxlen=_WRITES)
        self._stall_s: float | None = None  # stall of a checkpoint whose step has not ended yet
        self._probed_s: float | None = None  # stall of the latest checkpoint before the plan
        self._probes = self._probes_written = 0
        self._step_s, self._by_mtbf = 0.0, 1
        self._controller: Controller | None = None
        self._intervals: list[tuple[int, int]] = []

    def time_is_up(self, now: float) -> bool:
        """Return whether a checkpoint is due after the step that is under way."""
        if self._controller is not None:
            just_taken = self._stall_s is not None  # the controller is informed after the step
            return self._controller.interval == 1 if just_taken else self._controller.due_after_next
        waits = self._stall_s is not None or self._probes_written < self._probes
        return not waits and self._probes < _PROBES and self._steps + 1 >= self._policy.profile_steps

    def saved(self, stall_s: float) -> None:
        """Record that training waited `stall_s` for a checkpoint. The next step may report a further part of its stall."""
        self._stall_s = (self._stall_s or 0.0) + stall_s
        if self._controller is None and self._steps + 1 >= self._policy.profile_steps:
            self._probes += 1

    def stepped(self, seconds: float, stall_s: float, writing: bool, written: Sequence[Took]) -> None:
        """Record a training step of `seconds`, its wait `stall_s` for a snapshot, and the writes completed since the last one."""
        self._steps += 1
        checkpoint, before_s, self._stall_s = self._stall_s is not None, self._stall_s or 0.0, None
        self._writes.extend(each.seconds for each in written)
        if self._controller is None:
            self._probed_s = before_s + stall_s if checkpoint else self._probed_s
            self._probes_written = min(self._probes_written + len(written), self._probes)
            if self._steps > _WARM_UP and not checkpoint:
                self._timed.append(seconds)
            self._decide_first(written)
            return
        window = self._controller.step(seconds + before_s, checkpoint, before_s + stall_s, writing)
        if window is not None:
            self._step_s = window.base_s
        if window is not None or written:
            self._controller.least = self._least()
            self._note(self._controller.interval)

    def _decide_first(self, written: Sequence[Took]) -> None:
        """Plan the interval, if all profile steps are timed and the probe checkpoints after them are written."""
        if self._probes_written < _PROBES or self._probed_s is None:
            return
        self._step_s = max(median(self._timed or [0.0]), 1e-6)
        # The measured stall does not overlap with the next step. The profile expresses that by an update time of a whole step.
        work_s = written[-1].work_s if written and self._on_processors else 0.0
        profile = CheckpointProfile(self._step_s, self._step_s, self._probed_s, None, self._writes[-1], 0, interference_s=work_s)
        found = plan(profile, self._policy.overhead, self._policy.mtbf, self._in_flight)
        self._by_mtbf = found.interval_mtbf or 1
        self._controller = Controller(AIMED * self._policy.overhead, found.interval, self._least(), work_s)
        self._note(self._controller.interval)

    def _least(self) -> int:
        """Return the least interval in steps.

        At a shorter interval, too many checkpoints would be in flight, or they would cost more than the work that failures lose.
        """
        apart = math.ceil(median(self._writes) / (self._in_flight * self._step_s))
        return max(1, apart, self._by_mtbf)

    def _note(self, interval: int) -> None:
        if not self._intervals or self._intervals[-1][1] != interval:
            self._intervals.append((self._steps, interval))

    @property
    def decided(self) -> Decided | None:
        """Return the decisions so far; None before the first one."""
        if not self._intervals or self._probed_s is None:
            return None
        return Decided(tuple(self._intervals), self._step_s, self._probed_s, median(self._writes), self._in_flight)


class MeasuredPolicy(Policy):
    """Saves as often as `frequency` decides, at the batches `listed`, and on request.

    The job must ask `due` before each batch, and call `saved` after each checkpoint. The time between two batches of an epoch is
    the time of a step. The first batch of an epoch ends no step, since the job may evaluate before it.
    """

    def __init__(self, frequency: Frequency, listed: Collection[tuple[int, int]] = ()) -> None:
        super().__init__(listed=listed)
        self.frequency = frequency
        self._step: int | None = None  # the step under way
        self._began_s = self._stall_s = 0.0  # start of that step, and seconds of its checkpoint
        self._took_checkpoint = False

    def saved(self, seconds: float, now: float) -> None:
        """Record that the job waited `seconds` for a checkpoint, which ended at `now`."""
        super().saved(seconds, now)
        self._stall_s, self._took_checkpoint = seconds, True
        self.frequency.saved(seconds)

    def _reason(self, position: LoopPosition, now: float) -> str | None:
        is_due = False
        if position.batch >= 0 and position.step != self._step:
            if position.step - 1 == self._step and position.batch > 0:
                is_due = self.frequency.time_is_up(now)
                # Nothing is written concurrently, so what was written cost training no more than its stall.
                written = [Took(0.0, 0.0)] if self._took_checkpoint else []
                self.frequency.stepped(max(0.0, now - self._began_s - self._stall_s), 0.0, False, written)
                # Only now, as an epoch's last batch is not timed: the next timed step reports a checkpoint taken before it.
                self._took_checkpoint = False
            self._step, self._began_s, self._stall_s = position.step, now, 0.0
        return super()._reason(position, now) or ("frequency" if is_due else None)
