"""How many steps a second remain when failures send a job back to its last checkpoint, for each way of writing checkpoints.

The formulas are those of PCcheck's evaluation (Strati, Friedman, Klimovic: "PCcheck: Persistent Concurrent Checkpointing for ML",
ASPLOS 2025; its run_goodput_model.py), with k steps of t seconds between checkpoints, C the seconds from the beginning of a
checkpoint to its end and N checkpoints on the way at once.

What a failure makes the job do again, on average: k t + load for one checkpoint on the way (a whole interval: the newest is not
finished yet); k t / 2 + load where it is finished when training goes on, as with an ideal checkpoint; and k t / 2 + load
+ t min(C / t, k N) / 2 for N on the way.

The time of a step with checkpoints, which the original measures, is here what the rules of each system leave at best: stopped for
C every k steps (sync), or waiting for a place among the N on the way, C / N - k t every k steps (0 if that is negative).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """Seconds of a step without checkpoints, of a checkpoint from beginning to end, of loading one; steps between; N."""

    iteration_s: float
    checkpoint_s: float
    load_s: float
    interval: int
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.iteration_s < math.inf and 0 <= self.checkpoint_s < math.inf and 0 <= self.load_s < math.inf):
            raise ValueError("a step takes more than 0 s, a checkpoint and loading one 0 s or more")
        if self.interval < 1 or self.in_flight < 1:
            raise ValueError("the interval and the checkpoints in flight are at least 1")

    @property
    def interval_s(self) -> float:
        """Seconds of the steps between two checkpoints."""
        return self.interval * self.iteration_s

    def waits_s(self, in_flight: int) -> float:
        """Seconds a step that training waits on average until one of so many places is free."""
        return max(0.0, self.checkpoint_s / in_flight - self.interval_s) / self.interval


@dataclass(frozen=True)
class System:
    """Seconds that a failure costs and that checkpoints add to a step."""

    redo_s: Callable[[Job], float]
    added_s: Callable[[Job], float]


def _redo_pccheck(job: Job) -> float:
    on_the_way = min(job.checkpoint_s / job.iteration_s, job.interval * job.in_flight)
    return job.load_s + job.interval_s / 2 + job.iteration_s * on_the_way / 2


def _redo_half(job: Job) -> float:
    return job.load_s + job.interval_s / 2


SYSTEMS = {
    "checkfreq": System(lambda job: job.load_s + job.interval_s, lambda job: job.waits_s(1)),
    "sync": System(_redo_half, lambda job: job.checkpoint_s / job.interval),
    "pccheck": System(_redo_pccheck, lambda job: job.waits_s(job.in_flight)),
    "ideal": System(_redo_half, lambda job: 0.0),
}


@dataclass(frozen=True)
class Goodput:
    """Steps a second that count, the share of time they take without checkpoints, and the seconds that a failure costs."""

    steps_per_s: float
    useful_share: float
    redo_s: float


def goodput(system: str, job: Job, failures_per_s: float) -> Goodput:
    """Return what remains of `job` under one of SYSTEMS; 0 where failures come faster than what they cost is done again."""
    redo_s = SYSTEMS[system].redo_s(job)
    share = max(0.0, 1 - failures_per_s * redo_s)
    steps_per_s = share / (job.iteration_s + SYSTEMS[system].added_s(job))
    return Goodput(steps_per_s, steps_per_s * job.iteration_s, redo_s)
