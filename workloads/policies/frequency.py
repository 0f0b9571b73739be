"""How often to checkpoint: Algorithm 1 of CheckFreq from a profile, and a controller that corrects it by what steps really take.

After Mohan, Phanishayee and Chidambaram, "CheckFreq: Frequent, Fine-Grained DNN Checkpointing" (FAST 2021). Its controller only
lengthens the interval and compares with the profile of the start; this one moves both ways and compares with steps in between.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

HOST, DEVICE = "host", "device"
AIMED = 0.9  # of a bound: what is aimed at exactly is missed half of the time, and some of a cost shows in no step alone


@dataclass(frozen=True)
class Profile:
    """What a checkpoint of a job costs: seconds of one step and of each phase, bytes.

    `iteration_s` is a whole step without checkpoints (the paper's Ti), `update_s` the weight update at its end (Tw),
    `host_copy_s` and `device_copy_s` a copy of the state into host memory (Tc) or beside itself on the device (Tg), `write_s` the
    way from host memory to durable storage (Ts), `size_bytes` the state (m). `memory_used_bytes` (M) is the peak of device memory
    in use, of `memory_total_bytes` (Mmax). Without a device `device_copy_s` is None. The paper does not know the last two:
    what the call itself takes of training wherever the snapshot goes (`besides_s`), and what the writing takes of the
    processors that train (`interference_s`). Raises ValueError for impossible times.
    """

    iteration_s: float
    update_s: float
    host_copy_s: float
    device_copy_s: float | None
    write_s: float
    size_bytes: int
    memory_used_bytes: int = 0
    memory_total_bytes: int = 0
    besides_s: float = 0.0
    interference_s: float = 0.0

    def __post_init__(self) -> None:
        times = (
            self.update_s, self.host_copy_s, self.device_copy_s or 0.0, self.write_s, self.besides_s, self.interference_s
        )  # fmt: skip
        if not (0 < self.iteration_s < math.inf and all(0 <= time < math.inf for time in times)):
            raise ValueError("a step takes more than 0 s, and every other time is 0 s or more")

    @property
    def host_stall_s(self) -> float:
        """Seconds that training waits for a copy to the host, which goes on beside the next forward and backward pass."""
        return max(0.0, self.host_copy_s - max(0.0, self.iteration_s - self.update_s))


@dataclass(frozen=True)
class Plan:
    """Steps between checkpoints and where the snapshot goes; `stall_s` is what each costs training, `overhead` its share of time.

    `interval` is the largest of the three others: `interval_no_overlap`, below which more than the allowed number would be on the
    way at once, `interval_bounded`, below which stalls take more than the bound, and `interval_mtbf` (None without an MTBF).
    """

    interval: int
    snapshot: str
    stall_s: float
    interval_no_overlap: int
    interval_bounded: int
    interval_mtbf: int | None
    overhead: float


def plan(profile: Profile, overhead: float, mtbf_s: float | None = None, in_flight: int = 1) -> Plan:
    """Return Algorithm 1's interval for stalls of at most `overhead` (0.05 is 5 %) of the time of the steps.

    The snapshot stays on the device where memory allows and the stall is no longer than with one on the host. With `in_flight`
    checkpoints on the way at once (1 is CheckFreq's rule, more are PCcheck's: Strati, Friedman, Klimovic, ASPLOS 2025), each has
    that many intervals. `mtbf_s`, the mean time between failures, adds Young's interval sqrt(2 C MTBF) for a stall of C (CACM
    1974), below which stalls cost more than they save. Raises ValueError for a bound, MTBF or number that is not above 0.
    """
    if not (0 < overhead < math.inf and in_flight >= 1 and (mtbf_s is None or 0 < mtbf_s < math.inf)):
        raise ValueError("overhead and MTBF are above 0, and in_flight is at least 1")
    snapshot, waits_s = _snapshot(profile)
    step_s, stall_s = profile.iteration_s, waits_s + profile.besides_s + profile.interference_s
    no_overlap = _whole((profile.host_copy_s + profile.write_s - waits_s) / (in_flight * step_s))
    bounded = _whole(stall_s / (overhead * step_s))
    by_mtbf = None if mtbf_s is None else _whole(math.sqrt(2 * stall_s * mtbf_s) / step_s)
    interval = max(no_overlap, bounded, by_mtbf or 1)
    return Plan(interval, snapshot, stall_s, no_overlap, bounded, by_mtbf, stall_s / (interval * step_s))


def _snapshot(profile: Profile) -> tuple[str, float]:
    """Return where the snapshot goes, and the stall in seconds."""
    spare_bytes = profile.memory_total_bytes - profile.memory_used_bytes
    if profile.device_copy_s is not None and spare_bytes > profile.size_bytes and profile.device_copy_s <= profile.host_stall_s:
        return DEVICE, profile.device_copy_s
    return HOST, profile.host_stall_s


def _whole(steps: float) -> int:
    """Return whole steps, at least one; what is an integer but for rounding stays."""
    return max(1, math.ceil(steps * (1 - 1e-12) - 1e-9))


class Step(NamedTuple):
    """What a step was: its seconds, stall included; if a checkpoint began in it; its stall; if one was being written."""

    seconds: float
    checkpoint: bool = False
    stall_s: float = 0.0
    writing: bool = False

    @property
    def free(self) -> bool:
        """Whether no checkpoint has touched the step, as far as is known."""
        return not (self.checkpoint or self.writing)


@dataclass(frozen=True)
class StepWindow:
    """Steps from a checkpoint to the next, or several of them; steps count from 0 over the series, both ends are in the window.

    `base_s` is the seconds of a step beside no checkpoint. Shares are of `base_s` times the steps: `overhead` is all time above
    that, `stall_share` the part that training waited, and `interference_share` the rest, by which steps were slower beside writes
    (or by chance: it can be negative). `interval` is what was decided at the end of the window. As long as every step was beside
    a checkpoint, `base_s` is of those, without their stalls, and nothing is decided.
    """

    first_step: int
    last_step: int
    base_s: float
    overhead: float
    stall_share: float
    interference_share: float
    interval: int


class _Cost(NamedTuple):
    """What one checkpoint cost in a window, in steps: waited, slowed down, and the standard error of the latter."""

    stall: float
    interference: float
    error: float


_LEAST_STEPS = 8  # of a window: where checkpoints are closer, several make one
_AGREE = 3  # so many windows in a row move the interval by little, or back
_URGENT = 1.3  # one window moves it when it asks for so many times the interval
_MORE = 1.1  # the window after such a one, when its stalls ask for so many times what that one gave
_BAND = 0.9  # the interval shrinks when the windows ask for less than so much of it
_POOL = 16  # windows over which small interference is told from noise
_COMPARED = 32  # latest steps without a checkpoint, of which a step's seconds are the median
_ERRORS = 3  # a job's speed has changed when medians differ by so many standard errors
_FREE = 3  # steps without a checkpoint that the last windows must have to be compared with
_FREE_WINDOWS = 4


class Controller:
    """Holds the total overhead of checkpoints at a bound by moving the interval between them, up and down.

    The overhead is measured as wall time above that of the steps in between, which no checkpoint touches: what slows all steps
    alike is not the checkpoints' doing. The cost of a checkpoint is its stall, which is measured, and the interference of its
    writing with steps, which counts as far as it is more than noise (three standard errors in two windows in a row, or two in the
    median of the last 16), and as far as it was foreseen and may be so for all the noise. The interval that holds the bound is
    that cost over the bound. One window that asks for 1.3 times the interval moves it at once, to twice at most, and the next one
    raises it again if stalls alone ask for more, which are measured and not told from noise; else three windows must agree, and
    to shrink it they must ask for less than 0.9 of it. So noise of 20 % moves the interval at most once in three windows.

    `overhead` is the bound (0.05 is 5 %), `interval` where to begin, `least` below which it never falls (a plan's
    `interval_no_overlap`); both may be set between steps, as when a slower disk is seen. `foreseen_s` is a profile's
    `interference_s`. Raises ValueError for numbers that are not above 0, or a foreseen time below.
    """

    def __init__(self, overhead: float, interval: int, least: int = 1, foreseen_s: float = 0.0) -> None:
        if not (0 < overhead < math.inf and interval >= 1 and least >= 1 and 0 <= foreseen_s < math.inf):
            raise ValueError("overhead is above 0; interval and least are at least 1, and foreseen_s is 0 or more")
        self.overhead, self.least, self._foreseen_s = overhead, least, foreseen_s
        self._interval = interval
        self.changes = 0
        self._window: list[Step] = []
        self._begin = 0  # number of the first step of the window
        self._begun = False  # whether a checkpoint opened it
        self._since_checkpoint = 0
        self._free: deque[float] = deque(maxlen=_COMPARED)  # latest steps beside no checkpoint
        self._free_in_window = 0
        self._rested = False  # whether a checkpoint was put off, for steps to compare with
        self._free_counts: deque[int] = deque([_FREE], maxlen=_FREE_WINDOWS)
        self._knows_writing = False
        self._costs: deque[_Cost] = deque(maxlen=_POOL)
        self._needs: list[float] = []  # intervals that the windows since the last change ask for
        self._windows_since = _AGREE  # since the last change
        self._alert = False  # whether the last window alone moved the interval, by less than it asked for

    @property
    def interval(self) -> int:
        """Steps between two checkpoints from now on."""
        return max(self._interval, self.least)

    @property
    def due(self) -> bool:
        """Whether the next step is to begin a checkpoint.

        Where writing leaves no steps to compare with, one interval in a few is lengthened until there are some, at most to twice.
        """
        return self._due(self._since_checkpoint)

    @property
    def due_after_next(self) -> bool:
        """Whether the step after the next one is to begin a checkpoint: for a rank that must tell the others in time."""
        return self._due(self._since_checkpoint + 1)

    def _due(self, since: int) -> bool:
        if since < self.interval:
            return False
        return sum(self._free_counts) + self._free_in_window >= _FREE or since >= 2 * self.interval

    def step(self, seconds: float, checkpoint: bool = False, stall_s: float = 0.0, writing: bool = False) -> StepWindow | None:
        """Take a step: its wall time with `stall_s` in it, whether a checkpoint began in it, whether one was being written.

        Returns the window that it ends, None within one. `writing` may be left out always; then the steps without a checkpoint
        are taken to be mostly free of writing, which holds for writes shorter than half the interval.
        """
        ended = None
        if checkpoint:
            self._rested |= self._since_checkpoint > self.interval
            if self._begun and len(self._window) >= _LEAST_STEPS:
                ended = self._end_window()
            elif not self._begun:
                self._drop_lead()
            self._begun, self._since_checkpoint = True, 0
        self._since_checkpoint += 1
        self._knows_writing |= writing
        step = Step(seconds, checkpoint, stall_s, writing)
        self._window.append(step)
        self._free_in_window += step.free
        return ended

    def finish(self) -> StepWindow | None:
        """End the window that the series ends in, None without one."""
        return self._end_window() if self._begun and self._window else None

    def _drop_lead(self) -> None:
        """Keep what came before the first checkpoint as steps to compare with."""
        self._free.extend(step.seconds for step in self._window if step.free)
        self._begin += len(self._window)
        self._window, self._free_in_window = [], 0

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
        """Take the window's steps without a checkpoint to those of before, in their place where the job's speed has changed."""
        self._free_counts.append(max(len(free), _FREE * self._rested))  # it is not tried again at once
        self._rested = False
        if len(free) >= _FREE and self._free:
            middle, error = median(free), 1.25 * _spread(free) / math.sqrt(len(free))
            if abs(middle - median(self._free)) > _ERRORS * error:
                self._free.clear()
        self._free.extend(free)

    def _decide(self, cost: _Cost, foreseen: float) -> None:
        """Move the interval by what a window has shown, and the interference in steps that was foreseen."""
        self._costs.append(cost)
        need = (cost.stall + self._interference(foreseen)) / self.overhead
        self._needs = [*self._needs, need][-_AGREE:]
        now = self.interval
        self._windows_since += 1
        urgent = need > _URGENT * now and self._windows_since >= _AGREE
        if urgent or (self._alert and cost.stall / self.overhead > _MORE * now):
            self._move(min(need, 2 * now))
            self._alert = urgent and need > 2 * now
            return
        self._alert = False
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
        """Return the steps that a checkpoint's writing costs the others: what was foreseen, as far as noise allows."""
        latest = self._costs[-1]
        sure, most = 0.0, latest.interference + 2 * latest.error
        if len(self._costs) > 1:
            sure = min(cost.interference - 3 * cost.error for cost in list(self._costs)[-2:])
        if len(self._costs) >= _AGREE:
            seen = [cost.interference for cost in self._costs]
            middle = median(seen)
            error = 1.25 * _deviation(seen) / math.sqrt(len(seen))  # of a median, by the spread between windows
            sure = max(sure, middle - 2 * error)
            foreseen = min(foreseen, middle + 2 * error)
        return max(0.0, min(max(sure, foreseen), most))


def _cost(steps: list[Step], sample: Sequence[float], base_s: float, knows_writing: bool) -> _Cost:
    """Return what a checkpoint of these steps cost, beside `sample`, seconds of steps without one."""
    checkpoints = max(1, sum(step.checkpoint for step in steps))
    slowed = [step.seconds - step.stall_s for step in steps if not (knows_writing and step.free)]
    error = _spread(sample) * math.sqrt(len(slowed) + len(slowed) ** 2 * (math.pi / 2) / len(sample))
    scale = base_s * checkpoints
    stalled = sum(step.stall_s for step in steps)
    return _Cost(stalled / scale, (sum(slowed) - base_s * len(slowed)) / scale, error / scale)


def _spread(sample: Sequence[float]) -> float:
    """Return the standard deviation of the normal curve that has the sample's median deviation."""
    middle = median(sample)
    return 1.4826 * median([abs(value - middle) for value in sample])


def _deviation(sample: Sequence[float]) -> float:
    """Return the standard deviation, of two values or more. The statistics module takes a hundred times as long for it."""
    mean = sum(sample) / len(sample)
    return math.sqrt(sum((value - mean) ** 2 for value in sample) / (len(sample) - 1))


def tune(steps: Iterable[Step], overhead: float, interval: int) -> tuple[list[StepWindow], int]:
    """Return the windows of a recorded series, and how often a controller would have changed the interval.

    The last window counts if it has as many steps as the one before it. Raises ValueError as Controller does.
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
