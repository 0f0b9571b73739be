"""The accelerator of one rank, as time: how long it computes in each step, and where it waits for the other ranks."""

import time

from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.numbers.draws import DrawnTime, even_strata
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import Duration, Train, Twin


class ComputeTime:
    """How long the accelerator of `rank` computes in each step, drawn from `training` and `evaluation`.

    Draws spread evenly over an epoch of `steps`, or over an evaluation of `evaluation_steps`.
    """

    def __init__(
        self, train: Train, twin: Twin, training: Duration, evaluation: Duration, rank: int, steps: int, evaluation_steps: int
    ) -> None:
        seed, first, resume = train.seed, twin.first_step_time, twin.resume
        self._rank = rank
        self._begin = (1, 1) if resume is None else (resume.epoch, 1 if resume.mode == "full" else resume.step + 1)
        self._train = DrawnTime(training, seed, Purpose.TRAIN_STEP, even_strata(steps))
        self._first = None if first is None else DrawnTime(first, seed, Purpose.FIRST_STEP)
        self._warm_up = DrawnTime(twin.epoch_warm_up_time, seed, Purpose.EPOCH_WARM_UP, even_strata(train.epochs))
        self._evaluation = DrawnTime(evaluation, seed, Purpose.EVALUATION_STEP, even_strata(evaluation_steps))
        # Drawn as rank 0's on every rank: an exchange ends for all at once.
        self.all_reduce = DrawnTime(twin.all_reduce_time, seed, Purpose.ALL_REDUCE)

    def seconds(self, phase: str, epoch: int, step: int) -> float:
        """Return the seconds of step `step` (from 1) of epoch `epoch` (from 1); `phase` is train or evaluation."""
        if phase == "evaluation":
            return self._evaluation.seconds(self._rank, epoch, step - 1)
        if self._first is not None and (epoch, step) == self._begin:
            return self._first.seconds(self._rank, epoch, 0)
        warm_up_s = self._warm_up.seconds(self._rank, 0, epoch - 1) if step == 1 else 0.0
        return self._train.seconds(self._rank, epoch, step - 1) + warm_up_s


class Accelerator:
    """Computes for the drawn time, then exchanges gradients with the other ranks. If `waits`, it first waits for them."""

    def __init__(self, compute_time: ComputeTime, rank: Rank, sleeper: Sleeper, waits: bool) -> None:
        self._time, self._rank, self._sleeper = compute_time, rank, sleeper
        self._waits = waits and rank.count > 1

    def step(self, phase: str, epoch: int, step: int, flags: int) -> tuple[int, int, int]:
        """Compute one step. Return the nanoseconds of computation, those spent waiting for other ranks, and the flags of all."""
        seconds = self._time.seconds(phase, epoch, step)
        self._sleeper.sleep(seconds)
        waited_ns = 0
        if self._waits:
            begin_ns = time.monotonic_ns()
            flags, due_ns = self._rank.exchange(flags, self._sleeper.due_ns())
            self._sleeper.set_due(due_ns)
            waited_ns = time.monotonic_ns() - begin_ns
        if phase == "train":
            exchange_s = self._time.all_reduce.seconds(0, epoch, step - 1)
            self._sleeper.sleep(exchange_s)
            seconds += exchange_s
        return int(seconds * 1e9), waited_ns, flags
