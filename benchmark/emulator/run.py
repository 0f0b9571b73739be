"""Running a workload as one rank: the phases of a training job, with real reads by a real loader and the accelerator as time."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import islice
from typing import TextIO

from benchmark.config import Config
from benchmark.emulator.accelerator import Accelerator
from benchmark.emulator.cadences import checkpoint_policy, evaluation_cadence
from benchmark.emulator.checkpoints.frequency import Frequency
from benchmark.emulator.checkpoints.open import Checkpoints, open_checkpoints
from benchmark.emulator.checkpoints.writer import CheckpointWriter
from benchmark.emulator.data.dataset import open_dataset, start_up
from benchmark.emulator.data.order import Batch, evaluation_batches
from benchmark.emulator.loaders import open_loader, sampled_batches
from benchmark.emulator.ranks import CHECKPOINT, STOP, Rank
from benchmark.emulator.results.measured import DataSetFacts, Measured, Resumed, Span, Usage
from benchmark.emulator.results.steplog import StepParts
from common.errors import UsageError
from common.mllog import FOR_TRACERS, MlLog
from common.numbers.draws import DrawnTime
from common.numbers.keyed import Purpose
from common.numbers.sleeper import Sleeper
from common.processes import age_s, sharpen_timers
from common.progress import note
from workloads.policies.cadence import LoopPosition, Policy


def emulate(config: Config, log_stream: TextIO | None, rank: Rank | None = None, limit_s: float | None = None) -> Measured:
    """Run the workload as `rank` (by default the only one) for at most `limit_s` seconds and return what was measured.

    MLLOG lines go to `log_stream`.

    Raises IotwinError, naming the file, when the data set is missing, short or corrupt or a checkpoint cannot be written, and
    when a loader process dies. No process outlives the call.
    """
    rank = rank or Rank()
    sharpen_timers()
    sleeper = Sleeper(config.twin.busy_wait)
    log = MlLog(log_stream, FOR_TRACERS, **({"rank": rank.index} if rank.count > 1 else {}))
    sleeper.sleep(config.twin.startup_time - age_s())
    measured = Measured(rank.index, rank.node, rank.nodes, time.time())
    before = Usage.so_far()
    with ExitStack() as open_things:
        with log.interval("init"):
            begin = time.monotonic()
            run = _Run(config, rank, log, sleeper, measured, open_things)
            init_s = DrawnTime(config.twin.init_time, config.train.seed, Purpose.INIT).seconds(rank.index, 0, 0)
            sleeper.sleep(init_s - (time.monotonic() - begin))
        measured.start_s = time.time()
        rank.meet(0)
        run.stop_at(limit_s)
        with log.interval("run"):
            run.run()
    before.note_end(measured)
    return measured


class _Run:
    """The epochs of one rank, with the evaluations and checkpoints between them or between their steps."""

    def __init__(
        self, config: Config, rank: Rank, log: MlLog, sleeper: Sleeper, measured: Measured, open_things: ExitStack
    ) -> None:
        self._config, self._rank, self._log, self._sleeper, self._measured = config, rank, log, sleeper, measured
        self._resume = config.twin.resume
        self._evaluation_lead = DrawnTime(config.twin.evaluation.lead_time, config.train.seed, Purpose.EVALUATION_LEAD)
        self._deadline = float("inf")
        self._save_after = checkpoint_policy(config)
        self._by_time: Policy | Frequency = Policy()  # of checkpoints; one rank decides for all
        self._flags = 0
        self._interrupted_ns = 0  # when the last evaluation or checkpoint ended
        self._steps = 0  # of training so far
        self._numbers: dict[tuple[str, int], int] = {}  # spans so far, by kind and epoch
        if config.workflow.train:  # before anything is made: it may be missing
            self._dataset = open_dataset(config, rank.count)
        per_node = rank.count // rank.nodes
        self._checkpoints = (
            open_checkpoints(config, rank.index, rank.count, per_node, meet=rank.meet, arrive=rank.arrive)
            if config.workflow.checkpoint
            else None
        )
        self._writer = self._checkpoints if isinstance(self._checkpoints, CheckpointWriter) else None
        self._saved_at = Counter(config.twin.checkpoint.after_steps or [])
        self._epoch_ends_at = 0  # steps of training
        self._frequency = self._measured_frequency()
        if config.workflow.train:
            measured.data = DataSetFacts.of(self._dataset)
            self._loaders = {
                phase: open_things.enter_context(open_loader(config, samples, rank.index, rank.count, phase == "evaluation"))
                for phase, samples in (("train", self._dataset.train), ("evaluation", self._dataset.evaluation))
            }
            evaluated = evaluation_batches(config, measured.data.evaluation_samples, rank.index, rank.count)
            self._accelerator = Accelerator(config, rank, sleeper, self._steps_of_epoch(), len(evaluated))
            self._start_up()
            if rank.index == 0:
                self._log_parameters()

    def _measured_frequency(self) -> Frequency | None:
        """Return what decides by measured times, on the rank that decides for all; on each, where they do not meet."""
        twin = self._config.twin
        if twin.checkpoint.policy is None or self._writer is None or (self._rank.index > 0 and twin.barrier):
            return None
        in_flight = twin.checkpoint.in_flight if twin.checkpoint.asynchronous else 1
        return Frequency(twin.checkpoint.policy, in_flight, twin.checkpoint.on_processors)

    def _start_up(self) -> None:
        """Read what is read before the first epoch, the checkpoint among it where the run resumes."""
        config, resume, rank = self._config, self._resume, self._rank
        read_bytes = 0
        if resume is None or resume.mode != "skip_reads":
            read_bytes = start_up(config, rank.index, rank.count)
        if resume is None:
            return
        if resume.mode != "skip_reads" and not config.twin.startup_reads:
            if self._checkpoints is None:
                raise UsageError(
                    "twin.resume: there is no checkpoint to read; set workflow.checkpoint to true or mode to skip_reads"
                )
            self._measured.loaded += self._checkpoints.load()
            read_bytes = sum(file.size_bytes for file in self._measured.loaded)
        before = resume.step * config.reader.batch_size
        again = resume.mode in ("replay_data", "full")
        amounts = (0, before) if again else (before, 0)
        self._measured.resumed = Resumed(resume.mode, resume.epoch, resume.step, *amounts, read_bytes)

    def _log_parameters(self) -> None:
        log, config = self._log, self._config
        log.point("seed", config.train.seed)
        log.point("global_batch_size", config.reader.batch_size * self._rank.count)
        log.point("num_workers", config.reader.read_threads)
        log.point("train_samples", self._measured.data.train_samples)
        log.point("eval_samples", self._measured.data.evaluation_samples)
        log.point("step_count", self._steps_of_epoch() * config.train.epochs)

    def _steps_of_epoch(self) -> int:
        return len(sampled_batches(self._config, self._measured.data.train_samples, 1, self._rank.index, self._rank.count))

    def stop_at(self, limit_s: float | None) -> None:
        """Let time run: for the whole run, and until the first checkpoint where time decides."""
        now = time.monotonic()
        if limit_s is not None:
            self._deadline = now + limit_s
        self._by_time = self._frequency or Policy(seconds=self._config.twin.checkpoint.seconds_between, now=now)

    def run(self) -> None:
        """Train, or write and read checkpoints alone."""
        if self._config.workflow.train:
            self._train()
        elif self._checkpoints is not None:
            self._checkpoints_alone(self._checkpoints)
        if self._checkpoints is not None:
            self._measured.saved += self._checkpoints.finish()
            self._measured.decided = self._frequency.decided if self._frequency else None
            self._load(self._checkpoints)

    def _train(self) -> None:
        """Run the epochs: the loop position to resume at is an epoch and the steps before it."""
        config = self._config
        if self._checkpoints is not None and config.checkpoint.checkpoint_after_step == 0 and self._resume is None:
            self._save(self._checkpoints, 0)
        if self._evaluates and config.twin.evaluation.steps_before:
            self._evaluate(0, config.twin.evaluation.steps_before)
        for epoch in range(1 if self._resume is None else self._resume.epoch, config.train.epochs + 1):
            with self._span("epoch", epoch) as amounts:
                amounts.append(self._train_epoch(epoch))
            saves = not self._saves_within(epoch) and self._saves(epoch, epoch_ended=True)
            self._interrupt(epoch, self._evaluates_after(epoch), saves)
            if self._stopped:
                self._measured.stopped_early = True
                return

    def _evaluates_after(self, epoch: int) -> bool:
        due, _ = evaluation_cadence(self._config.evaluation)
        return self._evaluates and due is not None and due.due(epoch)

    def _saves_within(self, epoch: int) -> bool:
        """Whether what is saved at the end of the epoch is part of it in the log, as it has no phase of its own."""
        return not self._logs_checkpoints and not self._evaluates_after(epoch)

    @property
    def _logs_checkpoints(self) -> bool:
        section = self._config.twin.checkpoint
        return not section.asynchronous if section.logged is None else section.logged

    @property
    def _evaluates(self) -> bool:
        return self._config.workflow.evaluation and self._measured.data.evaluation_samples > 0

    @property
    def _stopped(self) -> bool:
        return bool(self._flags & STOP)

    def _train_epoch(self, epoch: int) -> int:
        """Train the blocks of an epoch: the steps between what interrupts it; return how many steps they had."""
        config = self._config
        batches = sampled_batches(config, self._measured.data.train_samples, epoch, self._rank.index, self._rank.count)
        begun = self._steps_before(epoch, len(batches))
        replayed = begun if self._resume is not None and self._resume.mode == "replay_data" else 0
        steps = self._passing("train", epoch, batches[begun - replayed :], begun, replayed)
        self._epoch_ends_at = self._steps + len(batches) - begun
        _, evaluate_after = evaluation_cadence(config.evaluation)
        in_blocks = (evaluate_after is not None and self._evaluates) or (
            self._checkpoints is not None
            and self._logs_checkpoints
            and (self._save_after.within_epochs or self._by_time.within_epochs or self._config.twin.checkpoint.policy is not None)
        )
        done = begun
        begin = time.monotonic()
        while done < len(batches) and not self._stopped:
            evaluates = saves = False
            first = done
            with self._log.interval("block" if in_blocks else "epoch", epoch_num=epoch), self._span("block", epoch) as amounts:
                for _ in steps:
                    done, self._steps = done + 1, self._steps + 1
                    evaluates = self._evaluates and evaluate_after is not None and evaluate_after.due(self._steps)
                    # Under a policy the end of an epoch has its own.
                    saves = (done < len(batches) or config.twin.checkpoint.policy is None) and self._saves(epoch)
                    if saves and not evaluates and not self._logs_checkpoints:  # the job's log goes on beside it
                        self._interrupt(epoch, False, True)
                        saves = False
                    if evaluates or saves or self._stopped:
                        break
                if done == len(batches) and not evaluates and self._saves_within(epoch):
                    self._interrupt(epoch, False, self._saves(epoch, epoch_ended=True))
                amounts.append(done - first)
            self._interrupt(epoch, evaluates, saves)
        next(steps, None)  # nothing is left; the loader learns that, and ends its workers
        self._tell(epoch, "train", done - begun, time.monotonic() - begin)
        return done - begun

    def _steps_before(self, epoch: int, steps: int) -> int:
        """Return how many of the epoch's `steps` were done before this run began."""
        resume = self._resume
        if resume is None or resume.epoch != epoch:
            return 0
        if resume.step > steps:
            raise UsageError(f"twin.resume.step: {resume.step} is after the last of the {steps} steps of an epoch")
        begun = 0 if resume.mode == "full" else resume.step
        self._steps = (epoch - 1) * steps + begun
        return begun

    def _saves(self, epoch: int, epoch_ended: bool = False) -> bool:
        if self._flags & CHECKPOINT and not epoch_ended:
            self._save_after.ask()
        due = self._save_after.due(LoopPosition(epoch, self._steps, epoch_ended), time.monotonic())
        return self._checkpoints is not None and due is not None

    def _interrupt(self, epoch: int, evaluates: bool, saves: bool) -> None:
        """Run the checkpoints and evaluations that are due after a step, unless the run is to stop."""
        due: list[Callable[[int], None]] = [self._evaluate] if evaluates else []
        if saves and self._checkpoints is not None:
            due += [partial(self._save, self._checkpoints)] * max(1, self._saved_at[self._steps])
        for interruption in reversed(due) if self._config.twin.evaluation.after_checkpoint else due:
            if not self._stopped:
                interruption(epoch)

    def _evaluate(self, epoch: int, most: int | None = None) -> None:
        """Evaluate, or take the first steps of that, at `most` so many."""
        batches = evaluation_batches(self._config, self._measured.data.evaluation_samples, self._rank.index, self._rank.count)
        begin = time.monotonic()
        with self._log.interval("eval", epoch_num=epoch), self._span("eval", epoch) as amounts:
            self._sleeper.sleep(self._evaluation_lead.seconds(self._rank.index, epoch, 0))
            amounts.append(sum(1 for _ in islice(self._passing("evaluation", epoch, batches), most)))
        self._tell(epoch, "evaluation", int(amounts[0]), time.monotonic() - begin)

    def _tell(self, epoch: int, phase: str, steps: int, elapsed_s: float) -> None:
        of = f"{epoch} of {self._config.train.epochs}" if epoch else "none yet"
        size = self._config.reader.batch_size if phase == "train" else self._config.reader.batch_size_eval
        rate = steps * size * self._rank.count / max(elapsed_s, 1e-9)
        note(f"epoch {of}, {phase}: {steps} steps in {elapsed_s:.2f} s, {rate:.2f} samples/s")

    def _passing(self, phase: str, epoch: int, batches: Sequence[Batch], step: int = 0, replayed: int = 0) -> Iterator[int]:
        """Take every batch in order and, but for the first `replayed`, compute on it; yield after each step; `step` are done."""
        steps, accelerator = self._measured.steps, self._accelerator
        fetching = iter(self._loaders[phase].epoch(epoch, batches))
        for _ in range(replayed):
            next(fetching)
        begin_ns = time.monotonic_ns()
        while not self._stopped:
            asked_ns = time.monotonic_ns()
            fetched = next(fetching, None)
            if fetched is None:
                return
            arrived_ns = time.monotonic_ns()
            step += 1
            self._sleeper.add_delay(asked_ns - begin_ns)
            compute_ns, barrier_ns, self._flags = accelerator.step(phase, epoch, step, self._wishes())
            stalled_s = self._settle()
            done_ns = time.monotonic_ns()
            wait_ns, step_ns = arrived_ns - asked_ns, done_ns - begin_ns
            overhead_ns = step_ns - wait_ns - compute_ns - barrier_ns
            times = StepParts(begin_ns, wait_ns, compute_ns, barrier_ns, overhead_ns, step_ns)
            steps.add(phase, epoch, self._numbers.get(("block", epoch), 0) + 1, step, times, fetched)
            if self._config.twin.instrument and phase == "train":
                self._measured.instrumented.append((fetched.sample_ns, fetched.copy_ns))
            if phase == "train":
                self._note_step(step_ns / 1e9, stalled_s)
            begin_ns = done_ns
            yield step
            begin_ns = max(begin_ns, self._interrupted_ns)

    def _settle(self) -> float:
        """Wait for a snapshot that went on beside the step; return the seconds."""
        if self._writer is None:
            return 0.0
        begin = time.monotonic()
        self._writer.settle()
        return time.monotonic() - begin

    def _note_step(self, seconds: float, stalled_s: float) -> None:
        """Tell what decides how often to checkpoint what a step took."""
        if self._frequency is not None and self._writer is not None:
            writing, took = self._writer.progress()
            self._frequency.stepped(seconds, stalled_s, writing, took)

    def _wishes(self) -> int:
        """What this rank would have all do after this step: stop, or write a checkpoint because it is time."""
        now = time.monotonic()
        return (STOP if now >= self._deadline else 0) | (CHECKPOINT if self._by_time.time_is_up(now) else 0)

    def _save(self, checkpoints: Checkpoints, epoch: int) -> None:
        begin = time.monotonic()
        phase = self._log.interval("checkpoint", epoch_num=epoch) if self._logs_checkpoints else nullcontext()
        if self._config.twin.checkpoint.keep_epoch_ends and self._steps == self._epoch_ends_at and self._writer is not None:
            self._writer.keep_epoch_end(epoch, self._steps)
        with phase, self._span("save_ckpt", epoch) as amounts:
            saved = checkpoints.save(epoch, self._steps)
            if not self._config.twin.checkpoint.asynchronous:  # else these are files of earlier ones, written beside training
                amounts.append(sum(file.size_bytes for file in saved))
        self._measured.saved += saved
        if self._config.checkpoint.rank_sync:
            self._rank.meet(0)
        if self._frequency is not None:
            self._frequency.saved(time.monotonic() - begin)
        self._by_time.restart(time.monotonic())

    def _checkpoints_alone(self, checkpoints: Checkpoints) -> None:
        """Write checkpoint after checkpoint, computing in between."""
        checkpoint, seed = self._config.checkpoint, self._config.train.seed
        computing = DrawnTime(checkpoint.time_between_checkpoints, seed, Purpose.TRAIN_STEP)
        for number in range(1, max(1, checkpoint.num_checkpoints_write) + 1):
            if checkpoint.num_checkpoints_write == 0 or self._stopped:
                return
            self._pause(computing.seconds(self._rank.index, 1, number - 1))
            self._steps = number
            self._save(checkpoints, 1)
            self._flags = self._rank.meet(self._wishes())
            note(f"checkpoint {number} of {max(1, checkpoint.num_checkpoints_write)} written")

    def _load(self, checkpoints: Checkpoints) -> None:
        """Read the newest checkpoint back, as often as is asked for; computing in between where only checkpoints run."""
        checkpoint, seed = self._config.checkpoint, self._config.train.seed
        computing = DrawnTime(checkpoint.time_between_checkpoints, seed, Purpose.TRAIN_STEP)
        for index in range(max(0, checkpoint.num_checkpoints_read)):
            if not self._config.workflow.train:
                self._pause(computing.seconds(self._rank.index, 1, max(0, checkpoint.num_checkpoints_write) + index))
            self._rank.meet(0)  # nobody reads what another rank still writes
            with self._span("load_ckpt", self._config.train.epochs if self._config.workflow.train else 1) as amounts:
                loaded = checkpoints.load()
                amounts.append(sum(file.size_bytes for file in loaded))
            self._measured.loaded += loaded

    def _pause(self, seconds: float) -> None:
        """Compute between checkpoints."""
        begin_ns = time.monotonic_ns()
        self._sleeper.sleep(seconds)
        self._measured.pauses.append((begin_ns, time.monotonic_ns() - begin_ns))

    @contextmanager
    def _span(self, kind: str, epoch: int) -> Iterator[list[float]]:
        """Note when the block of code ran; it puts how much it did into the list."""
        amounts: list[float] = []
        start_s, start_ns = time.time(), time.monotonic_ns()
        yield amounts
        number = self._numbers[kind, epoch] = self._numbers.get((kind, epoch), 0) + 1
        end_s = start_s + (time.monotonic_ns() - start_ns) / 1e9  # the clock may be set meanwhile
        self._measured.spans.append(Span(kind, epoch, number, start_s, end_s, sum(amounts)))
        if kind not in ("epoch", "block"):
            self._interrupted_ns = time.monotonic_ns()
