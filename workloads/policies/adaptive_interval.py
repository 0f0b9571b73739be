"""Decides how often to checkpoint: Algorithm 1 of CheckFreq plans an interval from a profile, and a controller corrects it.

The source is Mohan, Phanishayee and Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN Checkpointing" (FAST 2021). The
controller of CheckFreq only lengthens the interval, and compares steps with the initial profile. The controller here also
shortens the interval, and compares with recent steps that no checkpoint affects.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import median
from typing import NamedTuple

HOST, DEVICE = "host", "device"
# A controller aims at this share of the bound. If it aimed at the bound itself, it would exceed the bound half of the time.
AIMED = 0.9


@dataclass(frozen=True)
class CheckpointProfile:
    """The cost of a job's checkpoint. Raises ValueError for impossible times. Comments give the paper's symbols in brackets."""

    iteration_s: float  # seconds of a whole step without checkpoints [Ti]
    update_s: float  # seconds of the weight update at the end of a step [Tw]
    host_copy_s: float  # seconds to copy the state to host memory [Tc]
    device_copy_s: float | None  # seconds to copy the state on the device [Tg], None without a device
    write_s: float  # seconds to write the state from host memory to durable storage [Ts]
    size_bytes: int  # size of the state [m]
    memory_used_bytes: int = 0  # peak of device memory in use [M]
    memory_total_bytes: int = 0  # device memory [Mmax]
    besides_s: float = 0.0  # seconds that the call which takes a checkpoint needs in addition to the copy; not in the paper
    interference_s: float = 0.0  # seconds of CPU time that writing takes away from training; not in the paper

    def __post_init__(self) -> None:
        times = (
            self.update_s, self.host_copy_s, self.device_copy_s or 0.0, self.write_s, self.besides_s, self.interference_s
        )  # fmt: skip
        if not (0 < self.iteration_s < math.inf and all(0 <= time < math.inf for time in times)):
            raise ValueError("a step must take more than 0 s, and every other time must be 0 s or more")

    @property
    def host_stall_s(self) -> Fraction:
        """Seconds that training waits for a copy to the host, which partly overlaps the next forward and backward passes."""
        overlapped_s = max(Fraction(0), _exact(self.iteration_s) - _exact(self.update_s))
        return max(Fraction(0), _exact(self.host_copy_s) - overlapped_s)


@dataclass(frozen=True)
class IntervalPlan:
    """A planned checkpoint interval in steps.

    * `interval` is the largest of three. Below `interval_no_overlap`, too many checkpoints would be in flight. Below
      `interval_bounded`, stalls would exceed the bound. `interval_mtbf` follows from an MTBF (None without it).
    * `snapshot` is where the snapshot is stored, HOST or DEVICE.
    * `stall_s` is how long a checkpoint stalls training, `overhead` the share of all time in such stalls.
    """

    interval: int
    snapshot: str
    stall_s: float
    interval_no_overlap: int
    interval_bounded: int
    interval_mtbf: int | None
    overhead: float


def plan(profile: CheckpointProfile, overhead: float, mtbf_s: float | None = None, in_flight: int = 1) -> IntervalPlan:
    """Return the interval of Algorithm 1, with which stalls take at most the share `overhead` (0.05 is 5 %) of step time.

    * The snapshot is stored on the device if it has room, and if this stalls training no longer than a copy to the host.
    * `in_flight` checkpoints may be unfinished at once, so each may take that many intervals. CheckFreq has 1; for more,
      PCcheck's rule applies (Strati, Friedman, Klimovic, ASPLOS 2025).
    * `mtbf_s`, the mean time between failures, sets a least interval, sqrt(2 C MTBF) for a stall of C (Young, CACM 1974). Below
      this interval, stalls cost more time than checkpoints save after failures.

    Raises ValueError if `overhead`, `mtbf_s` or `in_flight` is not above 0.
    """
    if not (0 < overhead < math.inf and in_flight >= 1 and (mtbf_s is None or 0 < mtbf_s < math.inf)):
        raise ValueError("overhead and MTBF must be above 0, and in_flight at least 1")
    snapshot, waits_s = _snapshot(profile)
    step_s, stall_s = _exact(profile.iteration_s), waits_s + _exact(profile.besides_s) + _exact(profile.interference_s)
    no_overlap = max(1, math.ceil((_exact(profile.host_copy_s) + _exact(profile.write_s) - waits_s) / (in_flight * step_s)))
    bounded = max(1, math.ceil(stall_s / (_exact(overhead) * step_s)))
    by_mtbf = None if mtbf_s is None else _whole(math.sqrt(2 * float(stall_s) * mtbf_s) / profile.iteration_s)
    interval = max(no_overlap, bounded, by_mtbf or 1)
    return IntervalPlan(interval, snapshot, float(stall_s), no_overlap, bounded, by_mtbf, float(stall_s / (interval * step_s)))


def _snapshot(profile: CheckpointProfile) -> tuple[str, Fraction]:
    """Return (HOST or DEVICE, the place to store the snapshot; seconds that this stalls training)."""
    spare_bytes = profile.memory_total_bytes - profile.memory_used_bytes
    if profile.device_copy_s is not None and spare_bytes > profile.size_bytes:
        device_s = _exact(profile.device_copy_s)
        if device_s <= profile.host_stall_s:
            return DEVICE, device_s
    return HOST, profile.host_stall_s


def _exact(value: float) -> Fraction:
    """Return exactly the decimal number that Python prints for `value`, so that sums are not rounded: 0.6 - 0.18 is then 0.42."""
    return Fraction(str(value))


def _whole(steps: float) -> int:
    """Return `steps` rounded up to an integer of at least 1. An excess as small as a rounding error is ignored."""
    return max(1, math.ceil(steps * (1 - 1e-12) - 1e-9))


class MeasuredStep(NamedTuple):
    """A measured step: its seconds, whether a checkpoint began in it, the seconds of stall, whether one was being written.

    `seconds` includes `stall_s`.
    """

    seconds: float
    checkpoint: bool = False
    stall_s: float = 0.0
    writing: bool = False

    @property
    def free(self) -> bool:
        """True if no checkpoint is known to affect the step."""
        return not (self.checkpoint or self.writing)


@dataclass(frozen=True)
class StepWindow:
    """The steps from one checkpoint to a later one, usually the next, and what the controller concluded from these steps.

    * `first_step` and `last_step` are both in the window; steps count from 0.
    * `base_s` is the time of a step that no checkpoint affects. If checkpoints affect every step, it is the time of steps without
      stalls, and the interval does not change.
    * `overhead` is the time of all steps divided by their number times `base_s`, less 1. It is the sum of `stall_share` (waiting)
      and `interference_share` (the rest, which noise can make negative).
    * `interval` is the interval in steps after the window.
    """

    first_step: int
    last_step: int
    base_s: float
    overhead: float
    stall_share: float
    interference_share: float
    interval: int


class _Cost(NamedTuple):
    """The cost of one checkpoint in a window, in steps: stall, interference, and the standard error of the interference."""

    stall: float
    interference: float
    error: float


_LEAST_STEPS = 8  # fewest steps of a window; if checkpoints are closer, a window spans several
_AGREE = 3  # consecutive windows that must need a shorter or longer interval before it changes, unless one is urgent (_URGENT)
_URGENT = 1.3  # a single window that needs more than this multiple of the interval changes the interval at once
_BAND = 0.9  # the interval shrinks only if _AGREE consecutive windows need less than this share of it
_POOL = 16  # number of latest windows from which small interference is distinguished from noise
_COMPARED = 32  # number of latest unaffected steps whose median is `base_s`
_ERRORS = 3  # the job's speed has changed if two medians differ by more than this many standard errors
_FREE = 3  # fewest unaffected steps that are needed in the latest _FREE_WINDOWS windows
_FREE_WINDOWS = 4


class Controller:
    """Keeps the total overhead of checkpoints at a bound by changing the interval between checkpoints, up or down.

    The overhead is the wall time above the time of steps that no checkpoint affects. So a cause that slows all steps is ignored.
    The cost of a checkpoint is its stall, which is measured, and the interference of its write with steps. Interference counts if
    it exceeds noise by three standard errors in two consecutive windows, or by two in the median of the last 16 windows. The
    interference that a profile foresees counts as far as measurements do not exclude it. A window "needs" the interval cost /
    bound.

    * A single window that needs 1.3 times the interval changes it at once, at most to twice.
    * If the following windows need as much for their stalls alone, each raises the interval again at once.
    * Otherwise three windows must agree. To shrink the interval, they must need less than 0.9 of it.

    So noise of 20 % changes the interval at most once in three windows.

    `overhead` is the bound (0.05 is 5 %), `interval` the first interval, `least` its lower limit (a plan's no-overlap interval).
    Bound and limit may be changed between steps. `foreseen_s` is a profile's `interference_s`. Raises ValueError if a number is
    not above 0, or `foreseen_s` is negative.
    """

    def __init__(self, overhead: float, interval: int, least: int = 1, foreseen_s: float = 0.0) -> None:
        if not (0 < overhead < math.inf and interval >= 1 and least >= 1 and 0 <= foreseen_s < math.inf):
            raise ValueError("overhead must be above 0, interval and least at least 1, and foreseen_s 0 or more")
        self.overhead, self.least, self._foreseen_s = overhead, least, foreseen_s
        self._interval = interval
        self.changes = 0
        self._window: list[MeasuredStep] = []
        self._begin = 0  # index of the window's first step
        self._begun = False  # True if the window began with a checkpoint
        self._since_checkpoint = 0
        self._free: deque[float] = deque(maxlen=_COMPARED)  # latest unaffected steps
        self._free_in_window = 0
        self._rested = False  # True if a checkpoint was postponed to get unaffected steps
        self._free_counts: deque[int] = deque([_FREE], maxlen=_FREE_WINDOWS)
        self._knows_writing = False
        self._costs: deque[_Cost] = deque(maxlen=_POOL)
        self._needs: list[float] = []  # the interval that each window since the last change needs
        self._windows_since = _AGREE  # since the last change
        self._stalls = 0.0  # interval that the last window needed for its stalls alone
        self._alert = False  # True if the last window changed the interval at once

    @property
    def interval(self) -> int:
        """Current number of steps between two checkpoints."""
        return max(self._interval, self.least)

    @property
    def due(self) -> bool:
        """True if the next step must begin a checkpoint.

        If writes affect all steps, a checkpoint is postponed every few intervals, to at most twice the interval, so that some
        steps are unaffected.
        """
        return self._due(self._since_checkpoint)

    @property
    def due_after_next(self) -> bool:
        """True if the step after the next must begin a checkpoint, for a rank that informs the others one step ahead."""
        return self._due(self._since_checkpoint + 1)

    def _due(self, since: int) -> bool:
        if since < self.interval:
            return False
        return sum(self._free_counts) + self._free_in_window >= _FREE or since >= 2 * self.interval

    def step(self, seconds: float, checkpoint: bool = False, stall_s: float = 0.0, writing: bool = False) -> StepWindow | None:
        """Record a step, whose values are the fields of MeasuredStep. Return the window that this step ends; None within a
        window.

        If `writing` is never True, writes are assumed to take less than half the interval, so that most steps are unaffected.
        """
        ended = None
        if checkpoint:
            self._rested |= self._since_checkpoint > self.interval
            if self._begun and len(self._window) >= _LEAST_STEPS:
                ended = self._end_window()
            elif not self._begun:
                # The steps before the first checkpoint count as unaffected.
                self._free.extend(step.seconds for step in self._window if step.free)
                self._begin += len(self._window)
                self._window, self._free_in_window = [], 0
            self._begun, self._since_checkpoint = True, 0
        self._since_checkpoint += 1
        self._knows_writing |= writing
        step = MeasuredStep(seconds, checkpoint, stall_s, writing)
        self._window.append(step)
        self._free_in_window += step.free
        return ended

    def finish(self) -> StepWindow | None:
        """Return the last window, although it is incomplete; None if no step was recorded since the window before."""
        return self._end_window() if self._begun and self._window else None

    def _end_window(self) -> StepWindow:
        steps, first = self._window, self._begin
        self._window, self._begin, self._free_in_window = [], first + len(steps), 0
        self._compare([step.seconds for step in steps if step.free])
        sample = self._free or [step.seconds - step.stall_s for step in steps]
        base_s = max(median(sample), 1e-9)
        if self._free:
            self._decide(_cost(steps, sample, base_s, self._knows_writing), self._foreseen_s / base_s)
        total = base_s * len(steps)
        overhead = sum(step.seconds for step in steps) / total - 1
        stalled = sum(step.stall_s for step in steps) / total
        return StepWindow(first, first + len(steps) - 1, base_s, overhead, stalled, overhead - stalled, self.interval)

    def _compare(self, free: list[float]) -> None:
        """Add the window's unaffected steps to the earlier ones; if the job's speed has changed, drop the earlier ones."""
        self._free_counts.append(max(len(free), _FREE * self._rested))  # so that the next checkpoint is not postponed again
        self._rested = False
        if len(free) >= _FREE and self._free:
            middle, error = median(free), 1.25 * _spread(free) / math.sqrt(len(free))
            if abs(middle - median(self._free)) > _ERRORS * error:
                self._free.clear()
        self._free.extend(free)

    def _decide(self, cost: _Cost, foreseen: float) -> None:
        """Change the interval if a window's measured `cost` requires it. `foreseen`: a profile's interference in steps."""
        self._costs.append(cost)
        stalls, before = cost.stall / self.overhead, self._stalls
        need, self._stalls = stalls + self._interference(foreseen) / self.overhead, stalls
        self._needs = [*self._needs, need][-_AGREE:]
        now = self.interval
        self._windows_since += 1
        if self._alert and stalls > _URGENT * now:
            self._move(min(stalls, max(before, 2 * now)))
            return
        self._alert = need > _URGENT * now and self._windows_since >= _AGREE
        if self._alert:
            self._move(min(need, 2 * now))
            return
        if len(self._needs) == _AGREE:
            if min(self._needs) > now * (1 + 1e-6):
                self._move(median(self._needs))
            elif max(self._needs) < _BAND * now:
                self._move(max(self._needs))

    def _move(self, need: float) -> None:
        before = self.interval
        self._interval = _whole(need)
        self.changes += self.interval != before
        self._needs, self._windows_since = [], 0

    def _interference(self, foreseen: float) -> float:
        """Return the interference of a checkpoint, in steps: the foreseen one, within the limits that measurements set."""
        latest = self._costs[-1]
        sure, most = 0.0, latest.interference + 2 * latest.error
        if len(self._costs) > 1:
            sure = min(cost.interference - 3 * cost.error for cost in list(self._costs)[-2:])
        if len(self._costs) >= _AGREE:
            seen = [cost.interference for cost in self._costs]
            middle = median(seen)
            error = 1.25 * _deviation(seen) / math.sqrt(len(seen))  # standard error of the median
            sure = max(sure, middle - 2 * error)
            foreseen = min(foreseen, middle + 2 * error)
        return max(0.0, min(max(sure, foreseen), most))


def _cost(steps: list[MeasuredStep], sample: Sequence[float], base_s: float, knows_writing: bool) -> _Cost:
    """Return the cost of a checkpoint in a window of `steps`. `sample` holds the seconds of steps that no checkpoint affects."""
    checkpoints = max(1, sum(step.checkpoint for step in steps))
    slowed = [step.seconds - step.stall_s for step in steps if not (knows_writing and step.free)]
    error = _spread(sample) * math.sqrt(len(slowed) + len(slowed) ** 2 * (math.pi / 2) / len(sample))
    scale = base_s * checkpoints
    stalled = sum(step.stall_s for step in steps)
    return _Cost(stalled / scale, (sum(slowed) - base_s * len(slowed)) / scale, error / scale)


def _spread(sample: Sequence[float]) -> float:
    """Return the standard deviation, estimated by the median absolute deviation."""
    middle = median(sample)
    return 1.4826 * median([abs(value - middle) for value in sample])


def _deviation(sample: Sequence[float]) -> float:
    """Return the standard deviation of at least two values; statistics.stdev takes a hundred times as long."""
    mean = sum(sample) / len(sample)
    return math.sqrt(sum((value - mean) ** 2 for value in sample) / (len(sample) - 1))


def tune(steps: Iterable[MeasuredStep], overhead: float, interval: int) -> tuple[list[StepWindow], int]:
    """Return (windows, changes): the windows of a recorded series of steps, and how often a controller changes the interval.

    A last, incomplete window is included if it has at least the steps of the one before. Raises ValueError as Controller does.
    """
    controller = Controller(overhead, interval)
    windows: list[StepWindow] = []
    count = 0
    for count, step in enumerate(steps, 1):  # noqa: B007
        ended = controller.step(*step)
        if ended:
            windows.append(ended)
    last = windows[-1] if windows else None
    if last is None or count - 1 - last.last_step >= last.last_step - last.first_step + 1:
        windows += [window] if (window := controller.finish()) else []
    return windows, controller.changes
