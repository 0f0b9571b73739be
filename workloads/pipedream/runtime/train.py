"""Trains a model as one rank of a pipeline: epochs, evaluations, checkpoints, and the lines that the original prints."""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, nn

from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.mllog import MlLog
from iotwin.common.ranks import launched_by_torchrun
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.common.variant import TIMED
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.weights import full_names, read_weights
from iotwin.workloads.pipedream.runtime.checkpoints import (
    FOLDER,
    PipelineProgress,
    StageCheckpoints,
    StageState,
    restore,
)
from iotwin.workloads.pipedream.runtime.engine import Load, StageRank, training_of
from iotwin.workloads.pipedream.runtime.epoch_log import EpochLog
from iotwin.workloads.pipedream.runtime.groups import stage_group, stage_leader
from iotwin.workloads.pipedream.runtime.learning_rate import LearningRate
from iotwin.workloads.pipedream.runtime.minibatches import ImageFiles, RandomSamples, Samples
from iotwin.workloads.pipedream.runtime.options import PipeDreamConfig
from iotwin.workloads.pipedream.runtime.weights import SgdVersions
from iotwin.workloads.policies.pipeline import PipelinePlan
from iotwin.workloads.state.batches import ResumableBatches
from iotwin.workloads.state.nested_state import digest_of
from iotwin.workloads.state.position import after, steps_done
from iotwin.workloads.state.torch_state import as_tensor

_PORT = "12345"  # default of PipeDream's training program


def train(config: PipeDreamConfig, plan: PipelinePlan, modules: Sequence[int]) -> None:
    """Train as the rank that the options or the environment name, and print the result as a JSON line.

    `modules` is the stage of each of the equal parts that the model is divided into.
    """
    # SIGTERM must kill at once: a rank that waits for another in C++ would not run a handler in Python. If a checkpoint is then
    # unfinished, the next commit to the store removes it.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _set_environment(config, plan)
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // config.num_ranks_in_server))
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ['MASTER_PORT']}"
    with contextlib.ExitStack() as joined:
        try:
            ranks = joined.enter_context(join_ranks(gpu=False))
        except RuntimeError as error:
            raise IotwinError(f"the ranks cannot join at {where}: {str(error).splitlines()[0]}") from None
        try:
            _train(config, plan, modules, ranks)
        except RuntimeError as error:
            if "gloo" not in str(error):
                raise
            raise IotwinError(f"the connection to another rank broke, so that rank has probably ended: {error}") from None


def _train(config: PipeDreamConfig, plan: PipelinePlan, modules: Sequence[int], ranks: TorchRanks) -> None:
    log = MlLog(sys.stdout if ranks.rank == 0 else None)
    with log.interval("init"):
        job = PipelineJob(config, plan, modules, ranks, log)
    with log.interval("run"), job.checkpoints.store if job.checkpoints else contextlib.nullcontext():
        job.run()
    ranks.sum(0)  # no rank leaves while another one still receives from it
    print(json.dumps(job.result()), flush=True)


def _set_environment(config: PipeDreamConfig, plan: PipelinePlan) -> None:
    """Set the variables from which the ranks find one another. Raises UsageError if they name another number of ranks."""
    own = {"MASTER_ADDR": config.master_addr, "RANK": str(config.rank[0]) if config.rank else None}
    os.environ |= {name: value for name, value in own.items() if value is not None}
    os.environ.setdefault("MASTER_PORT", _PORT)
    if os.environ.setdefault("WORLD_SIZE", str(plan.ranks)) != str(plan.ranks):
        raise UsageError(f"the environment's WORLD_SIZE {os.environ['WORLD_SIZE']} is not the {plan.ranks} ranks of the plan")
    launched_by_torchrun()


class PipelineJob:
    """One rank's share of the training of a pipeline."""

    def __init__(
        self, config: PipeDreamConfig, plan: PipelinePlan, modules: Sequence[int], ranks: TorchRanks, log: MlLog
    ) -> None:
        self._config, self._plan, self._ranks, self._log = config, plan, ranks, log
        torch.manual_seed(config.seed)
        parts = Parts(config.variant in TIMED, rank=ranks.rank)
        self._samples = self._opened(ranks, parts)
        own = [self._samples.classes, self._samples.training, self._samples.validation] if self._samples else [0, 0, 0]
        # Only stage 0 reads the data. All ranks get these numbers by a sum, to which only the first rank of stage 0 contributes.
        classes, self._training, self._validation = (
            int(value) for value in ranks.sum(*(own if ranks.rank == plan.stages[0].ranks[0] else [0, 0, 0]))
        )
        if self._training < config.batch_size:
            few = f"{config.data_dir} has {self._training} training images, too few for one minibatch of {config.batch_size}"
            raise IotwinError(f"{few}; lower --batch-size or generate more images")
        torch.manual_seed(config.seed)
        converted = config.converted
        if converted and converted.classes and classes not in (0, converted.classes):
            raise IotwinError(
                f"{config.data_dir} has images of {classes} classes, and the weights in {config.module} are for "
                f"{converted.classes}; convert with --classes {classes}"
            )
        built = build(config.arch, config.size, classes or config.classes)
        if converted:
            read_weights(built.module, Path(str(config.module)), len(converted.modules) - 1)
        self._training_of_plan = training_of(built, plan, modules, config.seed, config.recompute, config.vertical_sync)
        self._batches = ResumableBatches(self._training, config.batch_size, config.seed, with_epoch=True)
        self._job = {"job": "pipedream", "network": config.arch, "preset": config.size, "classes": classes}
        self._job |= {"seed": config.seed, "stages": len(plan.stages)}
        stage = next(stage.stage for stage in plan.stages if ranks.rank in stage.ranks)
        names = full_names(built.module, self._training_of_plan.model.stages[stage].module)
        self._optimizer = SgdVersions(config.lr, config.momentum, config.weight_decay)
        group = stage_group(plan, ranks.rank)
        leader = stage_leader(plan, ranks.rank)
        self._rank = StageRank(self._training_of_plan, ranks.rank, self._optimizer, group, parts)
        self._stage = plan.stages[self._rank.stage]
        self._state = StageState(self._module, self._rank.weights, self._optimizer, names)
        self.checkpoints: StageCheckpoints | None = None
        if config.checkpoint_dir is not None and leader is not None:
            self.checkpoints = StageCheckpoints(config.checkpoint_dir / FOLDER, leader, self._job)
        share = self._stage.replicas / plan.stages[0].replicas
        self._rate = LearningRate(config.lr, share, config.lr_policy, config.epochs, config.lr_warmup)
        self._best_prec1 = 0.0
        self._losses: list[float] = []
        self._evaluations: list[dict[str, float]] = []
        self._resumed = self._resume()

    def _opened(self, ranks: TorchRanks, parts: Parts) -> Samples | None:
        """Return the data, None on ranks of later stages, which read none."""
        config = self._config
        if ranks.rank not in self._plan.stages[0].ranks:
            return None
        if config.synthetic_data or config.data_dir is None:
            return RandomSamples(config)
        return ImageFiles(config, config.data_dir, parts)

    @property
    def _module(self) -> nn.Module:
        return self._training_of_plan.model.stages[self._rank.stage].module

    def _resume(self) -> dict[str, Any] | None:
        """Load the checkpoint of --resume, if any. Otherwise begin with the epoch of --start-epoch."""
        if self._config.resume is None:
            for _ in range(self._config.start_epoch):
                self._batches.advance_epoch()
            return None
        progress = restore(self._config.resume, self._rank.stage, self._state, self._job)
        if (progress.position.samples, progress.position.batch_size) != (self._training, self._config.batch_size):
            raise IotwinError(
                f"{self._config.resume} is of {progress.position.samples} images and minibatches of "
                f"{progress.position.batch_size}; give it its own data and --batch-size"
            )
        self._batches.position, self._rank.trained = progress.position, progress.trained
        self._best_prec1 = progress.best_prec1
        epoch = progress.position.epoch - 1
        print(f"loaded checkpoint '{self._config.resume}' (epoch {epoch}, minibatch {progress.trained})", flush=True)
        return {"epoch": epoch, "trained": progress.trained}

    def run(self) -> None:
        """Train or, with --forward_only, evaluate the remaining epochs."""
        while (epoch := self._batches.position.epoch - 1) < self._config.epochs:
            if not self._config.forward_only:
                with self._log.interval("epoch", epoch_num=epoch + 1):
                    self._train_epoch(epoch)
            with self._log.interval("eval", epoch_num=epoch + 1):
                self._evaluate(epoch)
            self._batches.advance_epoch()
            if not self._config.forward_only:
                self._save("epoch")

    @property
    def _epoch_minibatches(self) -> int:
        """The number of minibatches of an epoch."""
        whole = self._training // self._config.batch_size
        return min(whole, self._config.num_minibatches or whole)

    def _train_epoch(self, epoch: int) -> None:
        """Train the rest of an epoch. The pipeline is drained at its end, and before each checkpoint within it."""
        begin_s, length = time.time(), self._epoch_minibatches
        log = self._observed("Epoch", epoch, length)
        done, every = steps_done(self._batches.position), self._config.checkpoint_steps or length
        log.index = self._own(done)
        firsts = [*range(0, done, every), *range(done, length, every)]
        blocks = [end - first for first, end in pairwise([*firsts, length])]
        updates = [self._training_of_plan.update_of(self._rank.stage, count - 1) + 1 for count in blocks]
        for block, (first, count) in enumerate(zip(firsts, blocks, strict=True)):
            if first < done:
                continue
            self._rank.rate = partial(self._learning_rate, epoch, sum(updates[:block]), sum(updates))
            self._rank.train(self._load(count), count)
            self._share_buffers()
            self._batches.position = after(self._batches.position, count)
            if first + count < length:
                self._save("steps")
        if log.loss.weight:
            self._losses.append(log.loss.mean)
        end_s = time.time()
        print(f"Epoch {epoch}: {end_s - begin_s:.3f} seconds", flush=True)
        print(f"Epoch start time: {begin_s:.3f}, epoch end time: {end_s:.3f}", flush=True)

    def _learning_rate(self, epoch: int, before: int, updates: int, update: int) -> float:
        return self._rate.at(epoch, before + update, updates)

    def _own(self, minibatches: int) -> int:
        """Return how many of `minibatches` consecutive minibatches of the pipeline this rank computes."""
        return len(range(self._rank.replica, minibatches, self._stage.replicas))

    def _load(self, minibatches: int) -> Load:
        if self._samples is None:
            return _no_data
        return self._samples.train(self._batches, minibatches, self._rank.replica, self._stage.replicas)

    def _observed(self, kind: str, epoch: int, minibatches: int) -> EpochLog:
        """Return the log of an epoch or an evaluation, to which the rank reports its minibatches from now on."""
        log = EpochLog(kind, epoch, self._own(minibatches), self._config.print_freq)

        def observe(minibatch: int, output: Tensor | None, targets: Sequence[Tensor], loss: float | None) -> None:
            log.add(output, targets, loss)
            if self._config.verbose_frequency and log.index % self._config.verbose_frequency == 0:
                print(f"Minibatch {minibatch}: {self._rank.traffic()}", flush=True)

        self._rank.observe = observe
        return log

    def _evaluate(self, epoch: int) -> None:
        """Compute loss and precision on the validation images, and print them on the last stage."""
        count = -(-self._validation // self._config.eval_batch_size)
        count = min(count, self._config.num_minibatches or count)
        log = self._observed("Test", epoch, count)
        replica, replicas = self._rank.replica, self._stage.replicas
        self._rank.evaluate(self._samples.evaluate(replica, replicas) if self._samples else _no_data, count)
        # The ranks of the last stage have these numbers; the others add zeros.
        meters = (log.top1, log.top5, log.loss)
        *totals, samples = self._ranks.sum(*(meter.total for meter in meters), log.loss.weight)
        top1, top5, loss = (total / max(1.0, samples) for total in totals)
        if self._rank.stage == len(self._plan.stages) - 1:
            print(f" * Prec@1 {top1:.3f} Prec@5 {top5:.3f}", flush=True)
        self._log.point("eval_accuracy", top1 / 100, epoch_num=epoch + 1)
        self._best_prec1 = max(self._best_prec1, top1)
        self._evaluations.append({"epoch": epoch, "top1": top1, "top5": top5, "loss": loss})

    def _share_buffers(self) -> None:
        """Copy the buffers, such as running means, of the stage's first replica to the stage's other replicas.

        Checkpoints hold the buffers of the first replica only.
        """
        if self._rank.group is not None:
            for buffer in self._module.buffers():
                distributed.broadcast(buffer, self._stage.ranks[0], group=self._rank.group)

    def _save(self, reason: str) -> None:
        """Write a checkpoint if the options name a directory. All ranks wait until it is durable."""
        if self._config.checkpoint_dir is None:
            return
        with self._log.interval("checkpoint", epoch_num=self._batches.position.epoch):
            self._write(reason)
            self._ranks.sum(0)

    def _write(self, reason: str) -> None:
        if self.checkpoints is not None:
            progress = PipelineProgress(self._batches.position, self._rank.trained, self._best_prec1)
            size_bytes = sum(weight.nbytes for weight in self._rank.weights.latest().values())
            with self._rank.parts.measure("ckpt_write", **self._rank.labels(0, self._rank.weights.newest, size_bytes)):
                path = self.checkpoints.save(self._state, progress, reason)
            print(f"Saved checkpoint to {path}", flush=True)

    def result(self) -> dict[str, Any]:
        """Return what this rank has done, as a JSON object."""
        state = self._state.state_dict()
        tensors = sorted((state["weights"] | state["buffers"]).items())
        return {
            "rank": self._ranks.rank, "stage": self._rank.stage, "replica": self._rank.replica, "minibatches": self._rank.trained,
            "train_loss": self._losses, "evaluations": self._evaluations, "resumed_from": self._resumed,
            "weights_sha256": digest_of(as_tensor(name, tensor) for name, tensor in tensors),
        }  # fmt: skip


def _no_data(minibatch: int) -> tuple[Sequence[Tensor], Sequence[Tensor]]:
    raise AssertionError(f"only stage 0 reads data, but another one requests minibatch {minibatch}")
