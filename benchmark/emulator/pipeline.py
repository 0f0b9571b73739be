"""Run pipeline-parallel ranks. Stage 0 reads; every stage sleeps in place of its passes and waits for its neighbour stages.

`workloads.policies.pipeline` decides the order of the passes, as in PipeDream's simulator and runtime. A counter of the kernel
(eventfd) connects each pair of neighbouring ranks in each direction. So a slow read delays stage 0, and then the stages after it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TextIO

import msgspec

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.writer import open_checkpoints
from iotwin.benchmark.emulator.data.dataset import SampleSets, open_dataset
from iotwin.benchmark.emulator.data.order import Batch, evaluation_batches, training_batches
from iotwin.benchmark.emulator.journal import Journal, Measured, StepParts, open_journal
from iotwin.benchmark.emulator.loaders.base import Fetched, Loader
from iotwin.benchmark.emulator.loaders.open_loader import open_loader
from iotwin.benchmark.emulator.pipeline_channels import Channels, plan_of
from iotwin.benchmark.emulator.ranks import Rank, run_local, under_mpi
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.numbers.draws import DrawnTime, even_strata
from iotwin.common.numbers.keyed import Purpose
from iotwin.common.processes.process_settings import age_s, sharpen_timers
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.schema import CheckpointFile
from iotwin.workload_yaml.train_section import step_factor
from iotwin.workloads.policies.pipeline import Pass, PipelinePlan, Stage, order

_WRITE_BYTES = 8 << 20  # size of one write of a checkpoint
_NOTHING = Fetched(0, 0, 0, 0)


def run_pipeline(
    config: Config,
    log_stream: TextIO | None,
    ranks: int,
    limit_s: float | None,
    instrument: bool = False,
    receive: Callable[[int, bytes], None] | None = None,
) -> list[Measured]:
    """Run the workload's pipeline on this machine and return the measurements of each rank. `instrument`: log their passes.

    `receive` is called with the steps of each rank (see `run_local`).
    Raises UsageError for options that a pipeline does not support, and IotwinError if the data set is too small or a rank fails.
    """
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    plan = plan_of(section)
    if under_mpi() or limit_s is not None:
        raise UsageError("twin.pipeline runs on one machine, and whole; leave out mpirun and --for")
    if ranks != plan.ranks:
        raise UsageError(f"--ranks {ranks}: the pipeline of twin.pipeline has {plan.ranks}; leave --ranks out")
    dataset = open_dataset(config, plan.stages[0].replicas)
    minibatches = _minibatches(config, section.minibatches, dataset)
    evaluated = len(evaluation_batches(config, len(dataset.evaluation))) if config.workflow.evaluation else 0
    channels = Channels(plan, max(minibatches, evaluated))
    try:
        job = partial(_run_rank, config, (log_stream, instrument), plan, (minibatches, evaluated), channels)
        return run_local(plan.ranks, job, receive)
    finally:
        channels.close()


def _minibatches(config: Config, asked: int | None, dataset: SampleSets) -> int:
    """Return the number of minibatches in an epoch: `asked`, or all full batches of the data set if it is None."""
    held = len(training_batches(config, len(dataset.train), 1))
    if asked is not None and asked > held:
        raise IotwinError(
            f"twin.pipeline.minibatches: {asked} are asked for, the data set has {held}; generate more, or ask for fewer"
        )
    return held if asked is None else asked


def _run_rank(
    config: Config, log: tuple[TextIO | None, bool], plan: PipelinePlan, counts: tuple[int, int], channels: Channels, rank: Rank
) -> Measured:
    """Run one rank of the pipeline for all epochs and return its measurements.

    `log`: stream of MLLOG lines, and whether they include passes.
    `counts`: the minibatches of an epoch, and those of an evaluation (0: there are no evaluations).
    """
    sharpen_timers()
    twin, work = config.twin, config.workflow
    waits.sleep(twin.startup_time - age_s() if twin.startup_time else 0.0)
    with open_journal(rank, *log) as journal, ExitStack() as open_things:
        with journal.interval("init"):
            begin_s = waits.now_s()
            run = _PipelineRank(config, plan, counts, channels, rank, journal, open_things)
            init_s = DrawnTime(twin.init_time, config.train.seed, Purpose.INIT).seconds(0, 0, 0)
            waits.sleep(init_s - (waits.now_s() - begin_s))
        rank.meet()
        journal.measured.note_start()
        with journal.interval("run"):
            for epoch in range(1, config.train.epochs + 1):
                with journal.interval("epoch", epoch):
                    run.train(epoch)
                rank.meet()
                due = [("eval", run.evaluate)] * bool(counts[1]) + [("checkpoint", run.save)] * work.checkpoint
                for key, perform in reversed(due) if twin.evaluation.after_checkpoint else due:
                    with journal.interval(key, epoch):
                        rank.meet()  # no rank writes before the first one has logged the phase
                        perform(epoch)
                        rank.meet()
            run.finish()
    return journal.measured


class _PipelineRank:
    """One rank of a pipeline, which runs its passes in order. Ranks of stage 0 read; the first of each stage checkpoints."""

    def __init__(self, config: Config, plan: PipelinePlan, counts: tuple[int, int], channels: Channels, rank: Rank,
                 journal: Journal, open_things: ExitStack) -> None:  # fmt: skip
        self._config, self._plan, self._channels, self._rank, self._journal = config, plan, channels, rank.index, journal
        self._stage = next(stage for stage in plan.stages if rank.index in stage.ranks)
        self._replica = self._stage.ranks.index(rank.index)
        self._minibatches, evaluated = counts
        self._order = order(plan, self._stage.stage, self._replica, self._minibatches)
        backward = [minibatch for kind, minibatch in self._order if kind == "B"]
        updates = [plan.update_of(self._stage.stage, minibatch) + 1 for minibatch in backward]
        # For each minibatch whose backward pass completes an update: how many updates of the epoch are then done.
        self._updates = {
            own: done for own, done, later in zip(backward, updates, [*updates[1:], -1], strict=True) if done != later
        }
        self._evaluation_order = order(plan, self._stage.stage, self._replica, evaluated, "1f1b")
        self._times = _drawn_times(config, self._stage, len(self._order) // 2)
        self._sleeper = waits.new_sleeper(config.twin.busy_wait)
        self._warm_up = DrawnTime(config.twin.epoch_warm_up_time, config.train.seed, Purpose.EPOCH_WARM_UP)
        self._factor = step_factor(config.train, config.reader.batch_size)
        self._link_free_ns = 0
        self._fetching: Iterator[Fetched] = iter(())
        self._waited_ns = self._read_ns = self._computed_ns = self._meetings = 0
        self._others = [other for other in self._stage.ranks if other != rank.index]
        self._fetched: dict[int, Fetched] = defaultdict(lambda: _NOTHING)
        self._reads = self._stage.stage == 0
        if self._reads:
            readers = self._stage.replicas
            dataset = open_dataset(config, readers)
            journal.measured.data = dataset.facts
            self._samples, self._evaluated = len(dataset.train), len(dataset.evaluation)
            self._loader = open_things.enter_context(open_loader(config, dataset.train, self._replica, readers))
            if evaluated:
                own = open_loader(config, dataset.evaluation, self._replica, readers, evaluation=True)
                self._evaluation_loader = open_things.enter_context(own)
        saving = _checkpoint_config(config, plan)
        self._writes = any(file.rank == rank.index for file in saving.twin.checkpoint.files)
        # Also on ranks that write nothing: a rank that writes waits for all others before it renames a checkpoint folder.
        self._checkpoints = open_checkpoints(saving, rank) if config.workflow.checkpoint else None

    def train(self, epoch: int) -> None:
        """Run all passes of an epoch. At its end the pipeline is empty."""
        if self._reads:
            self._fetch(epoch, self._loader, training_batches(self._config, self._samples, epoch)[: self._minibatches])
        step = 0
        begin_ns, before = waits.now_ns(), self._meetings
        with self._journal.interval(None, epoch, "epoch") as amounts:
            for done in self._order:
                kind, minibatch = done
                self._receive(done)
                if self._reads and done == self._order[0]:
                    self._sleep(self._factor * self._warm_up.seconds(self._rank, 0, epoch - 1))
                seconds = self._factor * self._times[kind].seconds(self._rank, epoch, minibatch // self._stage.replicas)
                self._compute(done, seconds if kind == "F" else seconds + self._stage.all_reduce_s, epoch)
                self._send(done)
                if kind == "B":
                    self._meet(before + self._updates.get(minibatch, 0))
                    step += 1
                    begin_ns = self._log_step("train", epoch, step, minibatch, begin_ns)
            amounts.append(step)
        self._meet(before + self._plan.update_of(self._stage.stage, self._minibatches - 1) + 1)
        next(self._fetching, None)  # exhausts the loader's iterator, which then ends its workers

    def evaluate(self, epoch: int) -> None:
        """Run the forward passes of an evaluation. No stage runs ahead: acknowledgements travel back as gradients do."""
        if self._reads:
            self._fetch(epoch, self._evaluation_loader, evaluation_batches(self._config, self._evaluated))
        step = 0
        begin_ns = waits.now_ns()
        with self._journal.interval(None, epoch, "eval") as amounts:
            for done in self._evaluation_order:
                self._receive(done)
                if done[0] == "F":
                    self._sleep(self._times["eval"].seconds(self._rank, epoch, step) * self._config.train.computation_scale)
                    step += 1
                    begin_ns = self._log_step("evaluation", epoch, step, done[1], begin_ns)
                self._send(done)
            amounts.append(step)
        next(self._fetching, None)

    def _fetch(self, epoch: int, loader: Loader, batches: Sequence[Batch]) -> None:
        """Start to read this rank's minibatches. `batches`: all batches of the pipeline, of which the rank reads a share."""
        self._fetching = iter(loader.epoch(epoch, batches[self._replica :: self._stage.replicas]))

    def _receive(self, done: Pass) -> None:
        """Wait for the input of the pass `done`."""
        kind, minibatch = done
        if kind == "F" and self._reads:
            self._read(minibatch)
        else:
            self._wait(kind, minibatch)

    def _compute(self, done: Pass, seconds: float, epoch: int) -> None:
        """Sleep for `seconds`, the time of the pass `done` of training."""
        kind, minibatch = done
        # Log the times at which the job would begin and end the pass, not the clock's: a sleep that begins late is cut short to
        # catch up, so the clock would show a shorter pass.
        begin_ns = self._sleeper.due_ns()
        self._sleep(seconds)
        end_ns = self._sleeper.due_ns()
        self._journal.measured.passes.append((kind == "B", minibatch, begin_ns, end_ns))
        if self._journal.instrument and waits.virtual_clock() is None:
            labels = {"stage": self._stage.stage, "minibatch": (epoch - 1) * self._minibatches + minibatch}
            self._journal.log.line("INTERVAL_END", kind, {"start": begin_ns, "duration": end_ns - begin_ns}, labels)

    def _sleep(self, seconds: float) -> None:
        self._sleeper.sleep(seconds)
        self._computed_ns += int(seconds * 1e9)

    def _meet(self, updates: int) -> None:
        """Meet the stage's other replicas, as before each update of the weights, until there have been `updates` meetings."""
        while self._others and self._meetings < updates:
            asked_ns = waits.now_ns()
            self._wait_until(self._channels.meet(self._meetings, self._rank, self._others, self._sleeper.due_ns()), asked_ns)
            self._meetings += 1

    def _send(self, done: Pass) -> None:
        """Send the output of the pass `done` to the neighbour that waits for it."""
        kind, minibatch = done
        stage, plan = self._stage.stage, self._plan
        target = stage + (1 if kind == "F" else -1)
        if 0 <= target < len(plan.stages):
            due_ns = self._sleeper.due_ns() if kind == "F" else self._over_link(self._sleeper.due_ns())
            self._channels.send(kind, self._rank, plan.rank_of(target, minibatch), target, minibatch, due_ns)

    def _read(self, minibatch: int) -> None:
        asked_ns = waits.now_ns()
        fetched = next(self._fetching, None)
        if fetched is None:
            raise IotwinError(f"the loader ended before minibatch {minibatch}; the data set has changed meanwhile")
        self._read_ns += waits.now_ns() - asked_ns
        self._fetched[minibatch] = fetched

    def _wait(self, kind: str, minibatch: int) -> None:
        """Wait until the neighbour's output has arrived. The last stage's backward passes wait for no other stage."""
        stage, plan = self._stage.stage, self._plan
        source = stage + (-1 if kind == "F" else 1)
        if source == len(plan.stages):
            return
        asked_ns, own_due_ns = waits.now_ns(), self._sleeper.due_ns()
        sent_ns = self._channels.receive(kind, plan.rank_of(source, minibatch), self._rank, stage, minibatch)
        arrived_ns = self._over_link(sent_ns) if kind == "F" else sent_ns
        self._wait_until(max(own_due_ns, arrived_ns), asked_ns)

    def _wait_until(self, due_ns: int, asked_ns: int) -> None:
        waits.sleep((due_ns - waits.now_ns()) / 1e9)
        self._sleeper.set_due(due_ns)
        self._waited_ns += waits.now_ns() - asked_ns

    def _over_link(self, sent_ns: int) -> int:
        """Return when data sent at `sent_ns` has passed the link to the previous stage. A link transfers one output at a time."""
        self._link_free_ns = max(sent_ns, self._link_free_ns) + int(self._stage.receive_s / 2 * 1e9)
        return self._link_free_ns

    def _log_step(self, phase: str, epoch: int, step: int, minibatch: int, begin_ns: int) -> int:
        now_ns = waits.now_ns()
        computed_ns = self._computed_ns
        spent_ns = now_ns - begin_ns
        rest_ns = spent_ns - computed_ns - self._read_ns - self._waited_ns
        times = StepParts(begin_ns, self._read_ns, computed_ns, self._waited_ns, rest_ns, spent_ns)
        self._journal.step(phase, epoch, step, times, self._fetched.pop(minibatch, _NOTHING))
        self._read_ns = self._waited_ns = self._computed_ns = 0
        return now_ns

    def save(self, epoch: int) -> None:
        """Write the checkpoint files that this rank has to write after `epoch`, if any."""
        if self._checkpoints is None:
            return
        with self._journal.interval(None, epoch, "save_ckpt" if self._writes else None) as amounts:
            saved = self._checkpoints.save(epoch, epoch * self._minibatches)
            amounts.append(sum(file.size_bytes for file in saved))
        self._journal.measured.saved += saved

    def finish(self) -> None:
        """Finish the checkpoints, so that another run may overwrite them."""
        if self._checkpoints is not None:
            self._journal.measured.saved += self._checkpoints.finish()


def _drawn_times(config: Config, stage: Stage, passes: int) -> dict[str, DrawnTime]:
    """Return the times of a rank's forward, backward and evaluation passes. `passes`: number of each kind in an epoch."""
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    own, seed, strata = section.stages[stage.stage], config.train.seed, even_strata(passes)
    evaluation_s = own.forward_s if own.evaluation_s is None else own.evaluation_s
    return {
        "F": DrawnTime(own.forward_s, seed, Purpose.TRAIN_STEP, strata),
        "B": DrawnTime(own.backward_s, seed, Purpose.BACKWARD_PASS, strata),
        "eval": DrawnTime(evaluation_s, seed, Purpose.EVALUATION_STEP),
    }


def _checkpoint_config(config: Config, plan: PipelinePlan) -> Config:
    """Return the workload with a checkpoint file of each stage, written by its first rank, unless the YAML lists the files."""
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    if config.twin.checkpoint.files:
        return config
    files = []
    for index, stage in enumerate(section.stages):
        whole, rest = divmod(stage.checkpoint_bytes, _WRITE_BYTES)
        sizes = [(size, count) for size, count in ((_WRITE_BYTES, whole), (rest, 1)) if size and count]
        if sizes:
            files.append(CheckpointFile(f"checkpoint.{index}.epoch.{{epoch}}", sizes, rank=plan.stages[index].ranks[0]))
    checkpoint = msgspec.structs.replace(config.twin.checkpoint, files=files)
    return msgspec.structs.replace(config, twin=msgspec.structs.replace(config.twin, checkpoint=checkpoint))
