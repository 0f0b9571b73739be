"""Emulate the accelerator of a rank: in each step, sleep for the time of computation and wait for the other ranks."""

import time

from iotwin.benchmark.emulator.ranks import Rank
from iotwin.common.numbers.draws import DrawnTime, even_strata
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.workload_yaml import Duration, Train, Twin


class ComputeTime:
    """Draws the computation time of each step of `rank` from the distributions `training` and `evaluation`.

    Draws are stratified over the `steps` of an epoch and the `evaluation_steps` of an evaluation.
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
        # All ranks draw this time with rank 0's key, since an all-reduce ends on all ranks at once.
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
    """Sleeps for the computation time of a step, and then for its all-reduce, before which it waits for all ranks if `waits`."""

    def __init__(self, compute_time: ComputeTime, rank: Rank, sleeper: Sleeper, waits: bool) -> None:
        self._time, self._rank, self._sleeper = compute_time, rank, sleeper
        self._waits = waits and rank.count > 1

    def step(self, phase: str, epoch: int, step: int, flags: int) -> tuple[int, int, int]:
        """Compute one step. Return (ns of computation, ns of waiting for other ranks, flags that any rank has set)."""
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
