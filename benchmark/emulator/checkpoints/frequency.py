"""When checkpoints are due, from what they cost: the run measures its steps and writes and adapts the interval.

As a job under CheckFreq does (workloads/checkfreq), by the same code: steps are timed, a checkpoint is measured, the interval
is planned from both, and a controller then corrects it.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmark.config import CheckpointPolicy
from benchmark.emulator.checkpoints.background import Took
from workloads.policies.frequency import AIMED, Controller, Profile, plan
from workloads.policies.goodput import Job, goodput

_WARM_UP = 5  # first steps, which do not count
_PROBES = 2  # checkpoints before the plan; the first makes memory ready and does not count
_WRITES = 3  # latest writes, of which the median counts


@dataclass(frozen=True)
class Decided:
    """What was decided, and by what: `intervals` are (step of the run, steps between checkpoints from then on)."""

    intervals: tuple[tuple[int, int], ...]
    step_s: float
    stall_s: float  # that training waited for a checkpoint, as the profile had it
    write_s: float  # that the latest ones took to write, the median of three
    in_flight: int

    def goodput_steps_per_s(self, mtbf_s: float) -> float:
        """Return the steps a second that count with failures that often, where loading takes as long as writing does."""
        job = Job(self.step_s, self.stall_s + self.write_s, self.write_s, self.intervals[-1][1], self.in_flight)
        return goodput("checkfreq" if self.in_flight == 1 else "pccheck", job, 1 / mtbf_s).steps_per_s


class Frequency:
    """Decides for a run, which reports every step, every checkpoint and every write to it.

    `on_processors`: the job trains on the processors that write, so that what writing works on them is a cost, as the job has it.
    """

    within_epochs = True

    def __init__(self, policy: CheckpointPolicy, in_flight: int, on_processors: bool = False) -> None:
        self._policy, self._in_flight, self._on_processors = policy, in_flight, on_processors
        self._steps = 0
        self._timed: list[float] = []
        self._writes: deque[float] = deque(maxlen=_WRITES)
        self._stall_s: float | None = None  # of a checkpoint whose step has not ended yet
        self._probed_s: float | None = None  # stall of the latest checkpoint before the plan
        self._probes = self._probes_written = 0
        self._step_s, self._by_mtbf = 0.0, 1
        self._controller: Controller | None = None
        self._intervals: list[tuple[int, int]] = []

    def time_is_up(self, now: float) -> bool:
        """Return whether a checkpoint is due after the step that is under way."""
        if self._controller is not None:
            just_taken = self._stall_s is not None  # which its step will tell the controller
            return self._controller.interval == 1 if just_taken else self._controller.due_after_next
        waits = self._stall_s is not None or self._probes_written < self._probes
        return not waits and self._probes < _PROBES and self._steps + 1 >= self._policy.profile_steps

    def restart(self, now: float) -> None:
        """A checkpoint has been taken: `saved` says what it cost."""

    def saved(self, stall_s: float) -> None:
        """Take note of a checkpoint that training waited for so long; more of its stall may follow in the next step."""
        self._stall_s = (self._stall_s or 0.0) + stall_s
        if self._controller is None and self._steps + 1 >= self._policy.profile_steps:
            self._probes += 1

    def stepped(self, seconds: float, stall_s: float, writing: bool, written: Sequence[Took]) -> None:
        """Take note of a training step, of what it waited for a snapshot, and of writes that have ended since the last one."""
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
        """Plan once the steps that are to be timed have passed, and checkpoints have been taken and written after them."""
        if self._probes_written < _PROBES or self._probed_s is None:
            return
        self._step_s = max(median(self._timed or [0.0]), 1e-6)
        # What training waited was measured, so nothing of it goes on beside the next step: as with an update as long as a step.
        work_s = written[-1].work_s if written and self._on_processors else 0.0
        profile = Profile(self._step_s, self._step_s, self._probed_s, None, self._writes[-1], 0, interference_s=work_s)
        found = plan(profile, self._policy.overhead, self._policy.mtbf, self._in_flight)
        self._by_mtbf = found.interval_mtbf or 1
        self._controller = Controller(AIMED * self._policy.overhead, found.interval, self._least(), work_s)
        self._note(self._controller.interval)

    def _least(self) -> int:
        """Return the steps below which more checkpoints than allowed would be on the way, or failures cost less."""
        apart = math.ceil(median(self._writes) / (self._in_flight * self._step_s))
        return max(1, apart, self._by_mtbf)

    def _note(self, interval: int) -> None:
        if not self._intervals or self._intervals[-1][1] != interval:
            self._intervals.append((self._steps, interval))

    @property
    def decided(self) -> Decided | None:
        """What was decided; None as long as nothing was."""
        if not self._intervals or self._probed_s is None:
            return None
        return Decided(tuple(self._intervals), self._step_s, self._probed_s, median(self._writes), self._in_flight)
