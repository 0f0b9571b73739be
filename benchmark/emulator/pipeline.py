"""Run pipeline-parallel ranks. Stage 0 reads; every stage sleeps in place of its passes and waits for its neighbour stages.

`workloads.policies.pipeline` decides the order of the passes, as in PipeDream's simulator and runtime. A counter of the kernel
(eventfd) connects each pair of neighbouring ranks in each direction. So a slow read delays stage 0, and then the stages after it.
"""

import mmap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TextIO

import msgspec
import numpy as np

from iotwin.benchmark.emulator import waits
from iotwin.benchmark.emulator.checkpoints.writer import open_checkpoints
from iotwin.benchmark.emulator.data.dataset import SampleSets, open_dataset
from iotwin.benchmark.emulator.data.order import training_batches
from iotwin.benchmark.emulator.journal import Journal, Measured, StepParts, open_journal
from iotwin.benchmark.emulator.loaders import open_loader
from iotwin.benchmark.emulator.loaders.base import Fetched
from iotwin.benchmark.emulator.ranks import Rank, run_local, under_mpi
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.processes.process_settings import sharpen_timers
from iotwin.workload_yaml import Config
from iotwin.workload_yaml.schema import CheckpointFile
from iotwin.workload_yaml.schema import Pipeline as Section
from iotwin.workload_yaml.train_section import step_factor
from iotwin.workloads.policies.pipeline import Pass, PipelinePlan, Stage, order

_WRITE_BYTES = 8 << 20  # of a checkpoint
_NOTHING = Fetched(0, 0, 0, 0)


def plan_of(section: Section) -> PipelinePlan:
    """Return the pipeline that `section` describes. Raises UsageError if a rank is in no stage or in two."""
    listed = [rank for stage in section.stages for rank in stage.ranks]
    if sorted(listed) != list(range(len(listed))):
        raise UsageError(
            f"twin.pipeline.stages: their ranks are {sorted(listed)}; each of 0 to {len(listed) - 1} is in one stage"
        )
    stages = tuple(
        Stage(
            index,
            tuple(stage.ranks),
            stage.forward_s,
            stage.backward_s,
            all_reduce_s=stage.all_reduce_s,
            receive_s=stage.receive_s,
        )
        for index, stage in enumerate(section.stages)
    )
    unknown = [name for name in section.depth if name not in map(str, range(len(stages)))]
    if unknown:
        raise UsageError(f"twin.pipeline.depth: '{unknown[0]}' is no stage; stages are 0 to {len(stages) - 1}")
    return PipelinePlan(stages, section.schedule, {int(stage): warm_up for stage, warm_up in section.depth.items()})


def run_pipeline(config: Config, log_stream: TextIO | None, ranks: int, limit_s: float | None) -> list[Measured]:
    """Run the workload's pipeline on this machine and return the measurements of each rank.

    Raises UsageError for options that a pipeline does not support, and IotwinError if the data set is too small or a rank fails.
    """
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    plan = plan_of(section)
    if under_mpi() or limit_s is not None or config.workflow.evaluation:
        raise UsageError(
            "twin.pipeline runs on one machine, whole and without evaluation; leave out mpirun, --for and workflow.evaluation"
        )
    if ranks != plan.ranks:
        raise UsageError(f"--ranks {ranks}: the pipeline of twin.pipeline has {plan.ranks}; leave --ranks out")
    minibatches = _minibatches(config, section.minibatches, plan, open_dataset(config, plan.stages[0].replicas))
    channels = _Channels(plan, minibatches)
    try:
        return run_local(plan.ranks, partial(_run_rank, config, log_stream, plan, minibatches, channels))
    finally:
        channels.close()


def _minibatches(config: Config, asked: int | None, plan: PipelinePlan, dataset: SampleSets) -> int:
    """Return the number of minibatches in an epoch: `asked`, or all full batches of the data set if it is None."""
    readers = plan.stages[0].replicas
    held = len(training_batches(config, len(dataset.train), 1, 0, readers)) * readers
    if asked is not None and asked > held:
        raise IotwinError(
            f"twin.pipeline.minibatches: {asked} are asked for, the data set has {held}; generate more, or ask for fewer"
        )
    return held if asked is None else asked


class _Channels:
    """Connects neighbouring ranks by counters (by direction, sender and receiver), and records when each output was sent."""

    def __init__(self, plan: PipelinePlan, minibatches: int) -> None:
        self._counters: dict[tuple[str, int, int], waits.EventCounter] = {}
        for before, after in zip(plan.stages, plan.stages[1:], strict=False):
            for a in before.ranks:
                for b in after.ranks:
                    for key in (("F", a, b), ("B", b, a)):
                        self._counters[key] = waits.EventCounter(single=True)
        shape = (2, len(plan.stages), minibatches)  # direction, receiving stage, minibatch
        self._sent_ns = np.frombuffer(mmap.mmap(-1, int(np.prod(shape)) * 8), np.int64).reshape(shape)

    def send(self, kind: str, sender: int, receiver: int, stage: int, minibatch: int, due_ns: int) -> None:
        """Send the output of a pass, due at `due_ns` (CLOCK_MONOTONIC), to the rank `receiver` of `stage`."""
        self._sent_ns["FB".index(kind), stage, minibatch] = due_ns
        self._counters[kind, sender, receiver].give()

    def receive(self, kind: str, sender: int, receiver: int, stage: int, minibatch: int) -> int:
        """Wait for the output of a pass, and return when it was due (CLOCK_MONOTONIC, ns)."""
        self._counters[kind, sender, receiver].take()
        return int(self._sent_ns["FB".index(kind), stage, minibatch])

    def close(self) -> None:
        """Close the counters, in the process that started the ranks."""
        for counter in self._counters.values():
            counter.close()


def _run_rank(
    config: Config, log_stream: TextIO | None, plan: PipelinePlan, minibatches: int, channels: _Channels, rank: Rank
) -> Measured:
    """Run one rank of the pipeline for all epochs and return its measurements."""
    sharpen_timers()
    with open_journal(rank, log_stream) as journal, ExitStack() as open_things:
        with journal.interval("init"):
            run = _PipelineRank(config, plan, minibatches, channels, rank.index, journal, open_things)
        rank.meet()
        journal.measured.note_start()
        with journal.interval("run"):
            for epoch in range(1, config.train.epochs + 1):
                with journal.interval("epoch", epoch):
                    run.train(epoch)
                rank.meet()
                if config.workflow.checkpoint:
                    with journal.interval("checkpoint", epoch):
                        run.save(epoch)
                        rank.meet()
            run.finish()
    return journal.measured


class _PipelineRank:
    """One rank of a pipeline, which runs its passes in order. Ranks of stage 0 read; the first of each stage checkpoints."""

    def __init__(self, config: Config, plan: PipelinePlan, minibatches: int, channels: _Channels, rank: int, journal: Journal,
                 open_things: ExitStack) -> None:  # fmt: skip
        self._config, self._plan, self._channels, self._rank, self._journal = config, plan, channels, rank, journal
        self._stage = next(stage for stage in plan.stages if rank in stage.ranks)
        self._replica = self._stage.ranks.index(rank)
        self._order = order(plan, self._stage.stage, self._replica, minibatches)
        self._sleeper = waits.new_sleeper(config.twin.busy_wait)
        self._factor = step_factor(config.train, config.reader.batch_size)
        self._link_free_ns = 0
        self._fetching: Iterator[Fetched] = iter(())
        self._waited_ns = self._read_ns = 0
        self._fetched: dict[int, Fetched] = defaultdict(lambda: _NOTHING)
        self._reads = self._stage.stage == 0
        if self._reads:
            readers = self._stage.replicas
            dataset = open_dataset(config, readers)
            journal.measured.data = dataset.facts
            self._samples = len(dataset.train)
            self._loader = open_things.enter_context(open_loader(config, dataset.train, self._replica, readers))
        writes = config.workflow.checkpoint and self._replica == 0
        self._checkpoints = (
            open_checkpoints(_checkpoint_config(config, self._stage.stage), note=self._stage.stage) if writes else None
        )

    def train(self, epoch: int) -> None:
        """Run all passes of an epoch. At its end the pipeline is empty."""
        own = sum(kind == "F" for kind, _ in self._order)
        if self._reads:
            batches = training_batches(self._config, self._samples, epoch, self._replica, self._stage.replicas)
            self._fetching = iter(self._loader.epoch(epoch, batches[:own]))
        step = 0
        begin_ns = waits.now_ns()
        with self._journal.interval(None, epoch, "epoch") as amounts:
            for done in self._order:
                self._pass(done)
                if done[0] == "B":
                    step += 1
                    begin_ns = self._log_step(epoch, step, done[1], begin_ns)
            amounts.append(step)
        next(self._fetching, None)  # exhausts the loader's iterator, which then ends its workers

    def _pass(self, done: Pass) -> None:
        """Wait for the input of the pass `done`, sleep for its time, and send its output."""
        kind, minibatch = done
        stage, plan = self._stage.stage, self._plan
        if kind == "F" and self._reads:
            self._read(minibatch)
        else:
            self._wait(kind, minibatch)
        # Log the times at which the job would begin and end the pass, not the clock's: a sleep that begins late is cut short to
        # catch up, so the clock would show a shorter pass.
        begin_ns = self._sleeper.due_ns()
        seconds = self._factor * (self._stage.forward_s if kind == "F" else self._stage.backward_s)
        self._sleeper.sleep(seconds if kind == "F" else seconds + self._stage.all_reduce_s)
        self._journal.measured.passes.append((kind == "B", minibatch, begin_ns, self._sleeper.due_ns()))
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
        due_ns = max(own_due_ns, arrived_ns)
        waits.sleep((due_ns - waits.now_ns()) / 1e9)
        self._sleeper.set_due(due_ns)
        self._waited_ns += waits.now_ns() - asked_ns

    def _over_link(self, sent_ns: int) -> int:
        """Return when data sent at `sent_ns` has passed the link to the previous stage, which transfers one output at a time."""
        self._link_free_ns = max(sent_ns, self._link_free_ns) + int(self._stage.receive_s / 2 * 1e9)
        return self._link_free_ns

    def _log_step(self, epoch: int, step: int, minibatch: int, begin_ns: int) -> int:
        now_ns = waits.now_ns()
        computed_ns = int(self._stage.busy_s * 1e9)
        spent_ns = now_ns - begin_ns
        rest_ns = spent_ns - computed_ns - self._read_ns - self._waited_ns
        times = StepParts(begin_ns, self._read_ns, computed_ns, self._waited_ns, rest_ns, spent_ns)
        self._journal.step("train", epoch, step, times, self._fetched.pop(minibatch, _NOTHING))
        self._read_ns = self._waited_ns = 0
        return now_ns

    def save(self, epoch: int) -> None:
        """Write the stage's checkpoint, if this is the first rank of its stage."""
        if self._checkpoints is None:
            return
        with self._journal.interval(None, epoch, "save_ckpt") as amounts:
            saved = self._checkpoints.save(epoch, epoch)
            amounts.append(sum(file.size_bytes for file in saved))
        self._journal.measured.saved += saved

    def finish(self) -> None:
        """Finish the checkpoints, so that another run may overwrite them."""
        if self._checkpoints is not None:
            self._journal.measured.saved += self._checkpoints.finish()


def _checkpoint_config(config: Config, stage: int) -> Config:
    """Return the workload with the checkpoint file of the stage at index `stage` instead of the model's."""
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    whole, rest = divmod(section.stages[stage].checkpoint_bytes, _WRITE_BYTES)
    sizes = [(size, count) for size, count in ((_WRITE_BYTES, whole), (rest, 1)) if size and count]
    files = [CheckpointFile(f"checkpoint.{stage}.epoch.{{epoch}}", sizes)] if sizes else []
    checkpoint = msgspec.structs.replace(config.twin.checkpoint, files=files)
    return msgspec.structs.replace(config, twin=msgspec.structs.replace(config.twin, checkpoint=checkpoint))


def pipeline_summary(config: Config, ranks: Sequence[Measured]) -> dict[str, Any]:
    """Return the summary of a run of a pipeline by the measurements of its `ranks`.

    ``{"seconds", "seconds_per_minibatch", "stages": [{"stage", "replicas", "busy_share", "bubble_share", "data_wait_s",
    "read_bytes", "checkpoint_bytes"}]}``. `seconds` covers all epochs. `seconds_per_minibatch` is measured at the last stage.
    Shares are shares of the time of all epochs, on all ranks of the stage.
    """
    section = config.twin.pipeline
    assert section is not None  # noqa: S101
    plan = plan_of(section)
    epochs = config.train.epochs
    passes = [np.array(one.passes, np.int64).reshape(epochs, -1, 4) for one in ranks]
    spans_ns = [
        max(int(p[e, :, 3].max()) for p in passes if p.size) - min(int(p[e, :, 2].min()) for p in passes if p.size)
        for e in range(epochs)
    ]
    total_s = sum(spans_ns) / 1e9
    last = [passes[rank] for rank in plan.stages[-1].ranks if passes[rank].size]
    steady_s = sum(
        (max(int(p[e, :, 3].max()) for p in last) - min(int(p[e, :, 2].min()) for p in last)) / 1e9 for e in range(epochs)
    )
    minibatches = sum(p[:, :, 0].sum() for p in last)
    return {
        "seconds": total_s,
        "seconds_per_minibatch": steady_s / int(minibatches),
        "stages": [_stage_summary(stage, [ranks[rank] for rank in stage.ranks], total_s) for stage in plan.stages],
    }


def _stage_summary(stage: Stage, ranks: Sequence[Measured], total_s: float) -> dict[str, Any]:
    busy_s = sum((end_ns - begin_ns) / 1e9 for one in ranks for _, _, begin_ns, end_ns in one.passes)
    rows = np.concatenate([one.steps.rows() for one in ranks])
    share = busy_s / (total_s * stage.replicas)
    return {
        "stage": stage.stage,
        "replicas": stage.replicas,
        "busy_share": share,
        "bubble_share": 1 - share,
        "data_wait_s": float(rows[:, 5].sum()) / 1e9,
        "read_bytes": int(rows[:, 11].sum()),
        "checkpoint_bytes": sum(file.size_bytes for one in ranks for file in one.saved),
    }
