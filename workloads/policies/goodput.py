"""Computes goodput: the useful steps per second of a job that returns to its last checkpoint after each failure.

The formulas come from PCcheck's evaluation (Strati, Friedman, Klimovic: "PCcheck: Persistent Concurrent Checkpointing for ML",
ASPLOS 2025; run_goodput_model.py). They use k steps of t seconds between checkpoints, C seconds for a checkpoint, `load` seconds
to load one, and N checkpoints in flight.

Mean seconds lost per failure:

* one checkpoint in flight: k t + load, a whole interval, because the newest checkpoint is unfinished;
* synchronous or ideal checkpoints: k t / 2 + load;
* N in flight: k t / 2 + load + t min(C / t, k N) / 2.

PCcheck's evaluation measures how long a step with checkpoints takes. Here, the time is the lower bound of each system. Every k
steps, training waits C seconds (synchronous), or max(0, C / N - k t) seconds until fewer than N checkpoints are in flight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailingJob:
    """A job: seconds of a step, a checkpoint and its loading, steps between checkpoints, and most checkpoints in flight."""

    iteration_s: float
    checkpoint_s: float
    load_s: float
    interval: int
    in_flight: int = 1

    def __post_init__(self) -> None:
        if not (0 < self.iteration_s < math.inf and 0 <= self.checkpoint_s < math.inf and 0 <= self.load_s < math.inf):
            raise ValueError("a step must take more than 0 s, a checkpoint and loading one 0 s or more")
        if self.interval < 1 or self.in_flight < 1:
            raise ValueError("the interval and the checkpoints in flight must be at least 1")

    @property
    def interval_s(self) -> float:
        """Seconds that the steps between two checkpoints take."""
        return self.interval * self.iteration_s

    def waits_s(self, in_flight: int) -> float:
        """Return the mean seconds per step in which training waits until fewer than `in_flight` checkpoints are unfinished."""
        return max(0.0, self.checkpoint_s / in_flight - self.interval_s) / self.interval


@dataclass(frozen=True)
class System:
    """A checkpointing system: functions for the seconds lost per failure, and for the seconds that checkpoints add to a step."""

    redo_s: Callable[[FailingJob], float]
    added_s: Callable[[FailingJob], float]


def _redo_pccheck(job: FailingJob) -> float:
    on_the_way = min(job.checkpoint_s / job.iteration_s, job.interval * job.in_flight)
    return job.load_s + job.interval_s / 2 + job.iteration_s * on_the_way / 2


def _redo_half(job: FailingJob) -> float:
    return job.load_s + job.interval_s / 2


SYSTEMS = {
    "checkfreq": System(lambda job: job.load_s + job.interval_s, lambda job: job.waits_s(1)),
    "sync": System(_redo_half, lambda job: job.checkpoint_s / job.interval),
    "pccheck": System(_redo_pccheck, lambda job: job.waits_s(job.in_flight)),
    "ideal": System(_redo_half, lambda job: 0.0),
}


@dataclass(frozen=True)
class GoodputEstimate:
    """Useful steps per second, this number times the seconds of a step, and the seconds lost per failure."""

    steps_per_s: float
    useful_share: float
    redo_s: float


def goodput(system: str, job: FailingJob, failures_per_s: float) -> GoodputEstimate:
    """Return the goodput of `job` with one of SYSTEMS; 0 if a failure costs more time than passes until the next."""
    redo_s = SYSTEMS[system].redo_s(job)
    share = max(0.0, 1 - failures_per_s * redo_s)
    steps_per_s = share / (job.iteration_s + SYSTEMS[system].added_s(job))
    return GoodputEstimate(steps_per_s, steps_per_s * job.iteration_s, redo_s)
