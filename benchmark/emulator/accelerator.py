"""The accelerator of one rank, as time: how long it computes, step by step, and where ranks wait for one another."""

import time

from benchmark.config import Config
from benchmark.config.step_time_models import step_time
from benchmark.emulator.ranks import Rank
from common.numbers.draws import DrawnTime, even_strata
from common.numbers.keyed import Purpose
from common.numbers.sleeper import Sleeper


class ComputeTime:
    """How long the accelerator computes, step by step: the seam at which other models of it come in.

    `steps` and `evaluation_steps` are those of an epoch and of an evaluation, over each of which times are drawn evenly.
    """

    def __init__(self, config: Config, rank: Rank, steps: int, evaluation_steps: int) -> None:
        seed, first = config.train.seed, config.twin.first_step_time
        computation = step_time(config.train.computation_time, config.num_gpus or rank.count, config.reader.batch_size)
        self._rank, resume = rank.index, config.twin.resume
        self._begin = (1, 1) if resume is None else (resume.epoch, 1 if resume.mode == "full" else resume.step + 1)
        self._train = DrawnTime(computation, seed, Purpose.TRAIN_STEP, even_strata(steps))
        self._first = None if first is None else DrawnTime(first, seed, Purpose.FIRST_STEP)
        self._warm_up = DrawnTime(config.twin.epoch_warm_up_time, seed, Purpose.EPOCH_WARM_UP, even_strata(config.train.epochs))
        of_evaluation = even_strata(evaluation_steps)
        self._evaluation = DrawnTime(config.evaluation.eval_time, seed, Purpose.EVALUATION_STEP, of_evaluation)

    def seconds(self, phase: str, epoch: int, step: int) -> float:
        """Return the seconds of step `step` (from 1) of epoch `epoch` (from 1); `phase` is train or evaluation."""
        if phase == "evaluation":
            return self._evaluation.seconds(self._rank, epoch, step - 1)
        if self._first is not None and (epoch, step) == self._begin:
            return self._first.seconds(self._rank, epoch, 0)
        warm_up_s = self._warm_up.seconds(self._rank, 0, epoch - 1) if step == 1 else 0.0
        return self._train.seconds(self._rank, epoch, step - 1) + warm_up_s


class Accelerator:
    """Computes for the drawn time, then meets the other ranks and exchanges gradients with them, as an all-reduce does."""

    def __init__(self, config: Config, rank: Rank, sleeper: Sleeper, steps: int, evaluation_steps: int) -> None:
        self._time, self._rank, self._sleeper = ComputeTime(config, rank, steps, evaluation_steps), rank, sleeper
        self._meets = config.twin.barrier
        # Drawn as rank 0's on every rank: an exchange ends for all at once.
        self._all_reduce = DrawnTime(config.twin.all_reduce_time, config.train.seed, Purpose.ALL_REDUCE)

    def step(self, phase: str, epoch: int, step: int, flags: int) -> tuple[int, int, int]:
        """Compute one step; return the nanoseconds asked for, those spent waiting for other ranks, and the flags of all."""
        seconds = self._time.seconds(phase, epoch, step)
        self._sleeper.sleep(seconds)
        waited_ns = 0
        if self._meets and self._rank.count > 1:
            begin_ns = time.monotonic_ns()
            flags, due_ns = self._rank.exchange(flags, self._sleeper.due_ns())
            self._sleeper.set_due(due_ns)
            waited_ns = time.monotonic_ns() - begin_ns
        if phase == "train":
            exchange_s = self._all_reduce.seconds(0, epoch, step - 1)
            self._sleeper.sleep(exchange_s)
            seconds += exchange_s
        return int(seconds * 1e9), waited_ns, flags
