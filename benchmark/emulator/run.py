"""Run a workload as one rank: the loop of a training job, with real reads, and with sleeps in place of computation.

`schedule` decides when evaluations and checkpoints are due, this module performs them, and `journal` records them.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import TextIO

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.writer import Checkpoints, CheckpointWriter, open_checkpoints
from iotwin.benchmark.emulator.data.dataset import DataSetFacts, open_dataset
from iotwin.benchmark.emulator.data.order import Batch, epoch_batches
from iotwin.benchmark.emulator.journal import Journal, Measured, ResumedRun, StepParts, open_journal
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
from iotwin.benchmark.emulator.ranks import STOP, Rank
from iotwin.benchmark.emulator.schedule import NOTHING, Due, Schedule
from iotwin.common.errors import UsageError
from iotwin.common.numbers.draws import DrawnTime, even_strata
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.numbers.sleeper import Sleeper
from iotwin.common.processes.process_settings import age_s, sharpen_timers
from iotwin.common.progress import note
from iotwin.common.units import counted
from iotwin.workload_yaml import Config, TwinResume
from iotwin.workload_yaml.step_time_models import step_time
from iotwin.workload_yaml.step_times import NamedStepTime
from iotwin.workload_yaml.train_section import step_factor
from iotwin.workloads.policies.checkpoint_frequency import Frequency


def emulate(
    config: Config, log_stream: TextIO | None, rank: Rank | None = None, limit_s: float | None = None, instrument: bool = False
) -> Measured:
    """Run the workload as `rank` (None: the only rank) for at most `limit_s` seconds, and return the measurements.

    MLLOG lines go to `log_stream`. `instrument`: rank 0 also records every part of every step. No process outlives the call.

    Raises IotwinError, which names the file, if the data set is missing, too short or damaged, or a checkpoint cannot be written.
    It is also raised if a loader process dies.
    """
    rank = rank or Rank()
    sharpen_timers()
    sleeper = waits.new_sleeper(config.twin.busy_wait, rank.count // rank.nodes)
    if config.twin.startup_time:
        sleeper.sleep(config.twin.startup_time - age_s())
    with open_journal(rank, log_stream, instrument and rank.index == 0) as journal, ExitStack() as open_things:
        with journal.interval("init"):
            begin = waits.now_s()
            loop = _Loop(config, rank, sleeper, journal, open_things)
            init_s = DrawnTime(config.twin.init_time, config.train.seed, Purpose.INIT).seconds(rank.index, 0, 0)
            sleeper.sleep(init_s - (waits.now_s() - begin))
        journal.measured.note_start()
        rank.meet(0)
        with journal.interval("run"):
            loop.run(limit_s)
        rank.meet()  # the end of one rank must not delay the last step of another
        journal.measured.compensated_s = sleeper.shortened_ns / 1e9
    return journal.measured


class Accelerator:
    """Sleeps for the computation of each step, and until all ranks have computed.

    Draws are stratified over the `steps` of an epoch and the `evaluation_steps` of an evaluation.
    """

    def __init__(self, config: Config, rank: Rank, sleeper: Sleeper, steps: int, evaluation_steps: int) -> None:
        train, twin, seed, resume = config.train, config.twin, config.train.seed, config.twin.resume
        training = train.computation_time
        if isinstance(training, NamedStepTime):
            training = step_time(training, config.num_gpus or rank.count, config.reader.batch_size)
        self._factor, self._evaluation_factor = step_factor(train, config.reader.batch_size), train.computation_scale
        self._rank, self._sleeper, self._waits = rank, sleeper, rank.count > 1
        self._begin = (1, 1) if resume is None else (resume.epoch, 1 if resume.mode == "full" else resume.step + 1)
        self._train = DrawnTime(training, seed, Purpose.TRAIN_STEP, even_strata(steps))
        self._warm_up = DrawnTime(twin.epoch_warm_up_time, seed, Purpose.EPOCH_WARM_UP, even_strata(train.epochs))
        evaluation = config.evaluation.eval_time
        self._evaluation = DrawnTime(evaluation, seed, Purpose.EVALUATION_STEP, even_strata(evaluation_steps))

    def step(self, phase: str, epoch: int, step: int, flags: int, since_ns: int) -> tuple[int, int, int]:
        """Compute one step of a phase, train or evaluation; epochs and steps count from 1.

        The emulated job began to compute at `since_ns` (CLOCK_MONOTONIC), and the emulator has worked for itself since then.
        Returns (ns of computation, ns of waiting for other ranks, flags that any rank has set).
        """
        seconds = self._seconds(phase, epoch, step)
        sleeper = self._sleeper
        if not self._waits:
            sleeper.sleep(seconds, since_ns)
            return int(seconds * 1e9), 0, flags
        if sleeper.busy:
            sleeper.sleep(seconds, since_ns)
            due_ns = sleeper.due_ns()
        else:
            due_ns = sleeper.begin(seconds, since_ns)  # a rank that slept by itself would wake up twice in each step
        flags, due_ns, waited_ns = self._rank.exchange(flags, due_ns)
        sleeper.set_due(due_ns)
        return int(seconds * 1e9), waited_ns, flags

    def _seconds(self, phase: str, epoch: int, step: int) -> float:
        rank = self._rank.index
        if phase == "evaluation":
            return self._evaluation_factor * self._evaluation.seconds(rank, epoch, step - 1)
        first_step = self._begin[1] if epoch == self._begin[0] else 1
        warm_up_s = self._warm_up.seconds(rank, 0, epoch - self._begin[0]) if step == first_step else 0.0
        return self._factor * (self._train.seconds(rank, epoch, step - 1) + warm_up_s)


class _Loop:
    """The epochs of one rank, with the evaluations and checkpoints between them or between their steps."""

    def __init__(self, config: Config, rank: Rank, sleeper: Sleeper, journal: Journal, open_things: ExitStack) -> None:
        self._config, self._rank, self._sleeper, self._journal = config, rank, sleeper, journal
        if config.workflow.train:  # before anything is written, since the data set may be missing
            dataset = open_dataset(config, rank.count)
            journal.measured.data = dataset.facts
        self._checkpoints = open_checkpoints(config, rank) if config.workflow.checkpoint else None
        self._writer = self._checkpoints if isinstance(self._checkpoints, CheckpointWriter) else None
        self._between = DrawnTime(config.checkpoint.time_between_checkpoints, config.train.seed, Purpose.TRAIN_STEP)
        if config.workflow.train:
            self._loaders = {
                phase: open_things.enter_context(
                    open_loader(config, samples, rank.index, rank.count, phase == "evaluation", journal.instrument)
                )
                for phase, samples in (("train", dataset.train), ("evaluation", dataset.evaluation))
            }
            self._evaluated = self._batches("evaluation", 0, dataset.facts.evaluation_samples)
            steps = len(self._batches("train", 1, dataset.facts.train_samples))
            self._accelerator = Accelerator(config, rank, sleeper, steps, len(self._evaluated))
            if config.twin.resume is not None:
                journal.measured.resumed = self._resume(config.twin.resume)
            if rank.index == 0:
                self._log_parameters(dataset.facts, steps)

    def _batches(self, phase: str, epoch: int, samples: int) -> Sequence[Batch]:
        return epoch_batches(self._config, phase, samples, epoch, self._rank.index, self._rank.count)

    def _log_parameters(self, data: DataSetFacts, steps: int) -> None:
        train, reader, log = self._config.train, self._config.reader, self._journal.log
        log.point("seed", train.seed)
        log.point("global_batch_size", reader.batch_size * self._rank.count)
        log.point("num_workers", reader.read_threads)
        log.point("train_samples", data.train_samples)
        log.point("eval_samples", data.evaluation_samples)
        log.point("step_count", steps * train.epochs)

    def _resume(self, resume: TwinResume) -> ResumedRun:
        """Read the newest checkpoint, unless the mode is skip_reads, and return the record."""
        read_bytes = 0
        if resume.mode != "skip_reads":
            if self._checkpoints is None:
                raise UsageError(
                    "twin.resume: there is no checkpoint to read; set workflow.checkpoint to true or mode to skip_reads"
                )
            loaded = self._checkpoints.load()
            self._journal.measured.loaded += loaded
            read_bytes = sum(file.size_bytes for file in loaded)
        steps = resume.step
        if resume.mode == "replay_all":
            samples = self._journal.measured.data.train_samples
            steps += sum(len(self._batches("train", epoch, samples)) for epoch in range(1, resume.epoch))
        samples = steps * self._config.reader.batch_size
        again = resume.mode in ("replay_data", "replay_all", "full")
        return ResumedRun(resume.mode, resume.epoch, resume.step, *((0, samples) if again else (samples, 0)), read_bytes)

    def run(self, limit_s: float | None) -> None:
        """Train, or only write and read checkpoints, for at most `limit_s` seconds."""
        config, data = self._config, self._journal.measured.data
        evaluates = config.workflow.train and config.workflow.evaluation and data.evaluation_samples > 0
        self._schedule = schedule = Schedule(config, evaluates, self._frequency(), limit_s)
        if config.workflow.train:
            self._train()
        elif self._checkpoints is not None:
            self._write_alone()
        if self._checkpoints is not None:
            self._journal.measured.saved += self._checkpoints.finish()
            self._journal.measured.decided = schedule.frequency.decided if schedule.frequency else None
            self._load(self._checkpoints)

    def _frequency(self) -> Frequency | None:
        """Return the `Frequency` of the workload's policy, if any. Only rank 0 has one, since ranks meet after each step."""
        section = self._config.twin.checkpoint
        if section.policy is None or self._writer is None or self._rank.index > 0:
            return None
        return Frequency(section.policy, section.in_flight if section.asynchronous else 1, section.on_processors)

    def _train(self) -> None:
        schedule = self._schedule
        if schedule.saves_first:
            self._save(0)
        for epoch in schedule.epochs:
            with self._journal.interval(None, epoch, "epoch") as amounts:
                amounts.append(self._train_epoch(epoch))
            self._perform(epoch, schedule.after_epoch)
            if schedule.flags & STOP:
                self._journal.measured.stopped_early = True
                return

    def _train_epoch(self, epoch: int) -> int:
        """Train an epoch and return its number of steps. A block is the steps between evaluations or checkpoints."""
        schedule, batches = self._schedule, self._batches("train", epoch, self._journal.measured.data.train_samples)
        count, begin = len(batches), waits.now_s()
        begun, replayed = schedule.begin_epoch(epoch, count)
        if begun > replayed:
            batches = batches[begun - replayed :]
        steps = self._steps("train", epoch, batches, begun, replayed)
        done = begun
        while done < count and not schedule.flags & STOP:
            first, due = done, NOTHING
            with self._journal.interval("block" if schedule.blocks else "epoch", epoch, "block") as amounts:
                for done in steps:  # noqa: B007 - used after the loop
                    due = schedule.after_step(epoch)
                    if due.checkpoints and not due.evaluation and not schedule.logs_checkpoints:
                        self._perform(epoch, due)  # within the block, since the log has no phase for checkpoints
                        due = NOTHING
                    if due is not NOTHING or schedule.flags & STOP:
                        break
                if schedule.epoch_ended and not due.evaluation:
                    self._perform(epoch, schedule.in_last_block)
                amounts.append(done - first)
            self._perform(epoch, due)
        next(steps, None)  # exhausts the loader's iterator, which then ends its workers
        self._show(epoch, "train", done - begun, self._config.reader.batch_size, begin)
        return done - begun

    def _show(self, epoch: int, phase: str, steps: int, batch: int, begin: float) -> None:
        """Print the rate of `steps` steps with `batch` samples each since `begin` (monotonic seconds)."""
        elapsed_s = waits.now_s() - begin
        rate = steps * batch * self._rank.count / max(elapsed_s, 1e-9)
        done = f"{counted(steps, 'step')} in {elapsed_s:.2f} s, {rate:.2f} samples/s"
        note(f"epoch {epoch} of {self._config.train.epochs}, {phase}: {done}")

    def _perform(self, epoch: int, due: Due) -> None:
        """Run the evaluations and write the checkpoints that are due, unless the run must stop."""
        work = [self._evaluate] * due.evaluation + [self._save] * due.checkpoints
        for each in reversed(work) if self._schedule.checkpoints_first else work:
            if not self._schedule.flags & STOP:
                each(epoch)

    def _evaluate(self, epoch: int) -> None:
        begin = waits.now_s()
        with self._journal.interval("eval", epoch, "eval") as amounts:
            amounts.append(sum(1 for _ in self._steps("evaluation", epoch, self._evaluated)))
        self._show(epoch, "evaluation", int(amounts[0]), self._config.reader.batch_size_eval, begin)

    def _steps(self, phase: str, epoch: int, batches: Sequence[Batch], step: int = 0, replayed: int = 0) -> Iterator[int]:
        """Load `batches` in order, compute a step on each but the first `replayed`, and yield the number of each step.

        The number of the first one is `step` + 1.
        """
        schedule, journal, asynchronous = self._schedule, self._journal, self._config.twin.checkpoint.asynchronous
        fetching = iter(self._loaders[phase].epoch(epoch, batches))
        for _ in range(replayed):
            next(fetching)
        begin_ns = own_ns = waits.now_ns()  # since `own_ns`, the time between batches is the emulator's own
        while not schedule.flags & STOP:
            asked_ns = waits.now_ns()
            fetched = next(fetching, None)
            if fetched is None:
                return
            # A batch may have been there when the rank asked for it. What the emulator spent itself shortens the next sleep.
            ready_ns = max(asked_ns, fetched.ready_ns or waits.now_ns())
            wait_ns = ready_ns - asked_ns
            step += 1
            flags = schedule.wishes()
            compute_ns, barrier_ns, schedule.flags = self._accelerator.step(phase, epoch, step, flags, own_ns + wait_ns)
            stalled_s = 0.0
            if self._writer is not None and asynchronous:
                stalled_s = self._writer.settle()
            done_ns = waits.now_ns()
            step_ns = done_ns - begin_ns
            overhead_ns = step_ns - wait_ns - compute_ns - barrier_ns
            times = StepParts(begin_ns, wait_ns, compute_ns, barrier_ns, overhead_ns, step_ns)
            journal.step(phase, epoch, step, times, fetched)
            if phase == "train" and schedule.frequency is not None and self._writer is not None:
                schedule.frequency.stepped(step_ns / 1e9, stalled_s, *self._writer.progress())
            begin_ns = done_ns
            own_ns = done_ns if stalled_s else max(self._sleeper.set_ns, ready_ns)
            yield step
            if journal.interrupted_ns > begin_ns:
                begin_ns = own_ns = journal.interrupted_ns

    def _save(self, epoch: int) -> None:
        if self._checkpoints is None:
            return
        schedule, begin = self._schedule, waits.now_s()
        twin = self._config.twin.checkpoint
        if twin.keep_every == "epoch" and schedule.epoch_ended and self._writer is not None:
            self._writer.keep_epoch_end(epoch, schedule.step)
        with self._journal.interval("checkpoint" if schedule.logs_checkpoints else None, epoch, "save_ckpt") as amounts:
            saved = self._checkpoints.save(epoch, schedule.step)
            if not twin.asynchronous:  # otherwise `saved` has files of earlier checkpoints
                amounts.append(sum(file.size_bytes for file in saved))
        self._journal.measured.saved += saved
        if self._config.checkpoint.rank_sync:
            self._rank.meet(0)
        if schedule.by_time is not None:
            schedule.by_time.saved(waits.now_s() - begin)

    def _write_alone(self) -> None:
        """Write the checkpoints of a run without training, and sleep for the computation between them."""
        asked = self._config.checkpoint.num_checkpoints_write
        count = max(1, asked) if asked else 0
        for number in range(1, count + 1):
            if self._schedule.flags & STOP:
                return
            self._pause(number - 1)
            self._schedule.step = number
            self._save(1)
            self._schedule.flags = self._rank.meet(self._schedule.wishes())
            note(f"checkpoint {number} of {count} written")

    def _load(self, checkpoints: Checkpoints) -> None:
        """Read the newest checkpoint back as often as configured; without training, compute in between."""
        section, trains = self._config.checkpoint, self._config.workflow.train
        for index in range(max(0, section.num_checkpoints_read)):
            if not trains:
                self._pause(max(0, section.num_checkpoints_write) + index)
            self._rank.meet(0)  # a rank may still write files that this one reads
            with self._journal.interval(None, self._config.train.epochs if trains else 1, "load_ckpt") as amounts:
                loaded = checkpoints.load()
                amounts.append(sum(file.size_bytes for file in loaded))
            self._journal.measured.loaded += loaded

    def _pause(self, index: int) -> None:
        """Sleep for the computation time before checkpoint `index`, in a run without training."""
        begin_ns = waits.now_ns()
        self._sleeper.sleep(self._between.seconds(self._rank.index, 1, index))
        self._journal.measured.pauses.append((begin_ns, waits.now_ns() - begin_ns))
