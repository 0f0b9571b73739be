"""Running a twin: the phases of a training job, with real reads by real loader processes and the accelerator as time."""

import time
from dataclasses import dataclass, field
from typing import TextIO

from benchmark.cadence import EpochCadence
from benchmark.checkpoint import CheckpointWriter, Written
from benchmark.config import Config
from benchmark.dataset import DataSet, open_dataset
from benchmark.draws import DrawnTime, Purpose
from benchmark.loader import Fetcher, Loader, make_loader
from benchmark.metrics import StepLog
from benchmark.mllog import MlLog
from benchmark.order import Batches, evaluation_batches, training_batches
from benchmark.process import age_s, sharpen_timers
from benchmark.sleeper import Sleeper
from benchmark.steptimes import step_time
from tracing_tools.trace.progress import note

_RANK = 0
_PREFETCH_FACTOR = 2  # PyTorch's default


class ComputeTime:
    """How long the accelerator computes, step by step: the seam at which other models of it come in."""

    def __init__(self, config: Config) -> None:
        seed, first = config.train.seed, config.twin.first_step_time
        computation = step_time(config.train.computation_time, config.num_gpus or 1, config.reader.batch_size)
        self._train = DrawnTime(computation, seed, Purpose.TRAIN_STEP)
        self._first = None if first is None else DrawnTime(first, seed, Purpose.FIRST_STEP)
        self._evaluation = DrawnTime(config.evaluation.eval_time, seed, Purpose.EVALUATION_STEP)

    def seconds(self, phase: str, epoch: int, step: int) -> float:
        """Return the seconds of step `step` (from 1) of epoch `epoch` (from 1); `phase` is train or evaluation."""
        if phase == "evaluation":
            return self._evaluation.seconds(_RANK, epoch, step - 1)
        if self._first is not None and (epoch, step) == (1, 1):
            return self._first.seconds(_RANK, epoch, 0)
        return self._train.seconds(_RANK, epoch, step - 1)


@dataclass
class Measured:
    """What a run measured, and when: UNIX seconds."""

    dataset: DataSet
    start_s: float
    end_s: float = 0.0
    steps: StepLog = field(default_factory=StepLog)
    checkpoints: list[Written] = field(default_factory=list)


def emulate(config: Config, log_stream: TextIO | None) -> Measured:
    """Run the workload, printing MLLOG lines to `log_stream`, and return what was measured.

    Raises IotwinError, naming the file, when the data set is missing, short or corrupt or a checkpoint cannot be written, and
    when a loader process dies. No process outlives the call.
    """
    sharpen_timers()
    sleeper, log = Sleeper(), MlLog(log_stream)
    sleeper.sleep(config.twin.startup_time - age_s())
    with log.interval("init"):
        begin = time.monotonic()
        measured = Measured(open_dataset(config), time.time())
        checkpoints = CheckpointWriter(config) if config.workflow.checkpoint else None
        _log_parameters(log, config, measured.dataset)
        init_s = DrawnTime(config.twin.init_time, config.train.seed, Purpose.INIT).seconds(_RANK, 0, 0)
        sleeper.sleep(init_s - (time.monotonic() - begin))
    with log.interval("run"):
        _Training(config, log, sleeper, measured, checkpoints).run()
    measured.end_s = time.time()
    return measured


def _log_parameters(log: MlLog, config: Config, dataset: DataSet) -> None:
    log.point("seed", config.train.seed)
    log.point("global_batch_size", config.reader.batch_size)
    log.point("num_workers", config.reader.read_threads)
    log.point("train_samples", len(dataset.train))
    log.point("eval_samples", len(dataset.evaluation))


class _Training:
    """The epochs of a run, with the evaluations and checkpoints between them."""

    def __init__(
        self, config: Config, log: MlLog, sleeper: Sleeper, measured: Measured, checkpoints: CheckpointWriter | None
    ) -> None:
        self._config, self._log, self._sleeper, self._measured = config, log, sleeper, measured
        self._checkpoints = checkpoints
        self._compute = ComputeTime(config)

    def run(self) -> None:
        """Run every epoch."""
        config, dataset = self._config, self._measured.dataset
        evaluation = EpochCadence(config.evaluation.eval_after_epoch, config.evaluation.epochs_between_evals)
        checkpoint = EpochCadence(config.checkpoint.checkpoint_after_epoch, config.checkpoint.epochs_between_checkpoints)
        with self._loader("train") as loader, self._loader("evaluation") as evaluation_loader:
            for epoch in range(1, config.train.epochs + 1):
                with self._log.interval("epoch", epoch_num=epoch):
                    self._pass("train", epoch, training_batches(config, len(dataset.train), epoch), loader)
                if config.workflow.evaluation and evaluation.due(epoch):
                    with self._log.interval("eval", epoch_num=epoch):
                        batches = evaluation_batches(config, len(dataset.evaluation))
                        self._pass("evaluation", epoch, batches, evaluation_loader)
                if self._checkpoints is not None and checkpoint.due(epoch):
                    with self._log.interval("checkpoint", epoch_num=epoch):
                        self._measured.checkpoints += self._checkpoints.save(epoch)

    def _loader(self, phase: str) -> Loader:
        config, dataset = self._config, self._measured.dataset
        seed, workers = config.train.seed, config.reader.read_threads
        if phase == "train":
            preprocess = DrawnTime(config.reader.preprocess_time, seed, Purpose.TRAIN_SAMPLE)
            fetcher = Fetcher(dataset.train, preprocess)
        else:
            preprocess = DrawnTime(config.twin.evaluation.preprocess_time, seed, Purpose.EVALUATION_SAMPLE)
            fetcher = Fetcher(dataset.evaluation, preprocess)
            workers = workers if config.twin.evaluation.read_threads is None else config.twin.evaluation.read_threads
        total = config.reader.prefetch_size
        prefetch = _PREFETCH_FACTOR if total is None else -(-total // max(workers, 1))
        return make_loader(fetcher, workers, prefetch, config.twin.persistent_workers)

    def _pass(self, phase: str, epoch: int, batches: Batches, loader: Loader) -> None:
        """Take every batch in order and compute on it: one epoch of training, or one evaluation."""
        steps = self._measured.steps
        begin_ns = pass_begin_ns = time.monotonic_ns()
        samples = 0
        for step, fetched in enumerate(loader.epoch(epoch, batches), 1):
            arrived_ns = time.monotonic_ns()
            seconds = self._compute.seconds(phase, epoch, step)
            self._sleeper.sleep(seconds)
            done_ns = time.monotonic_ns()
            times = (begin_ns, arrived_ns - begin_ns, int(seconds * 1e9), done_ns - begin_ns)
            steps.add(phase, epoch, step, times, fetched)
            begin_ns = done_ns
            samples += fetched.samples
        elapsed_s = (time.monotonic_ns() - pass_begin_ns) / 1e9
        of = f"{epoch} of {self._config.train.epochs}"
        note(f"epoch {of}, {phase}: {len(batches)} steps in {elapsed_s:.2f} s, {samples / elapsed_s:.2f} samples/s")
