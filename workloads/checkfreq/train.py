"""Trains an image classifier, and takes checkpoints as the options specify."""

import contextlib
import hashlib
import math
import sys
import time
from dataclasses import asdict, dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError
from iotwin.common.files import append_line, make_folder, open_rewritten
from iotwin.common.mllog import MlLog
from iotwin.common.units import counted
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.workloads.checkfreq.checkpoint import CFCheckpoint
from iotwin.workloads.checkfreq.config import CheckFreqConfig
from iotwin.workloads.checkfreq.data import evaluation_loader, training_loader
from iotwin.workloads.checkfreq.iterator import CFIterator
from iotwin.workloads.checkfreq.manager import CFManager, CFMode
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.common.variant import TIMED
from iotwin.workloads.models import build
from iotwin.workloads.state.batches import ResumableBatches
from iotwin.workloads.state.position import after, order_digest
from iotwin.workloads.state.torch_state import weights_sha256
from iotwin.workloads.state.tracked_objects import State

_STEP_EPOCHS, _STEP_FACTOR = 30, 0.1  # the published schedule of the learning rate
_SPLIT_HEADER = "epoch,iter,total,data,compute,stall,checkpoint,interval,loss\n"
_PROGRESS_HEADER = "epoch,seconds,top1,top5,loss\n"


@dataclass
class CheckFreqHistory:
    """The job's results so far. Checkpoints hold them, too."""

    order_sha256: str = hashlib.sha256().hexdigest()
    train_loss: list[float] = field(default_factory=list)  # per epoch, the mean over steps and ranks
    evaluations: list[dict[str, float]] = field(default_factory=list)
    loss: float = 0.0  # sum of the losses of the epoch so far
    loss_steps: int = 0  # number of these losses

    def state_dict(self) -> State:
        """Return all fields by name."""
        return {**vars(self), "train_loss": list(self.train_loss), "evaluations": list(self.evaluations)}

    def load_state_dict(self, state: State) -> None:
        """Replace all fields."""
        vars(self).update(state)


class ResultTables:
    """Writes the tables of CheckFreq's trainer: time-splitRANK.csv, a line per step; acc-progress-RANK.csv, a line per epoch."""

    def __init__(self, output: Path, rank: int) -> None:
        make_folder(output)
        self._split = TextIOWrapper(open_rewritten(output / f"time-split{rank}.csv"), encoding="utf-8")
        self._progress = TextIOWrapper(open_rewritten(output / f"acc-progress-{rank}.csv"), encoding="utf-8")
        self._split.write(_SPLIT_HEADER)
        self._progress.write(_PROGRESS_HEADER)

    def step(self, *values: float) -> None:
        """Write a line of time-splitRANK.csv."""
        self._split.write(",".join(f"{value:.6g}" for value in values) + "\n")

    def epoch(self, *values: float) -> None:
        """Write a line of acc-progress-RANK.csv."""
        self._progress.write(",".join(f"{value:.6g}" for value in values) + "\n")

    def close(self) -> None:
        """Flush and close both files."""
        self._split.close()
        self._progress.close()


class CheckFreqJob:
    """One rank's share of a training job."""

    def __init__(self, config: CheckFreqConfig, ranks: TorchRanks, log: MlLog) -> None:
        self._config, self._ranks, self._log = config, ranks, log
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.use_deterministic_algorithms(config.deterministic, warn_only=True)
        torch.manual_seed(config.seed)
        self._parts = Parts(config.variant in TIMED, torch.cuda.synchronize if self._cuda else None, rank=ranks.rank)
        classes, training = ImagenetLayout.discover(config.data, "train")
        self._loader = training_loader(training, config, ranks.rank, ranks.world_size, self._parts)
        self._batches: ResumableBatches = self._loader.batch_sampler
        self._evaluation = None
        if not config.noeval:
            _, validation = ImagenetLayout.discover(config.data, "val")
            self._evaluation = evaluation_loader(validation[ranks.rank :: ranks.world_size], config, self._parts)
        self.network = build(config.arch, config.preset, len(classes)).module.to(ranks.device)
        self._model = self._wrapped()
        rate = config.lr * config.batch_size * ranks.world_size / 256
        self._optimizer = torch.optim.SGD(self.network.parameters(), rate, config.momentum, weight_decay=config.wd)
        self._scheduler = torch.optim.lr_scheduler.StepLR(self._optimizer, _STEP_EPOCHS, _STEP_FACTOR)
        self._scaler = torch.amp.GradScaler(ranks.device.type, enabled=config.amp and self._cuda)
        self.history, self.times = CheckFreqHistory(), StepMeter()
        self.manager = self._manager()
        self.iterator = self._iterator()
        points = {
            "seed": config.seed,
            "world_size": ranks.world_size,
            "num_workers": config.workers,
            "global_batch_size": config.batch_size * ranks.world_size,
            "train_samples": len(training),
        }
        for key, value in points.items():
            log.point(key, value)

    @property
    def _cuda(self) -> bool:
        return self._ranks.device.type == "cuda"

    def _wrapped(self) -> nn.Module:
        if self._ranks.world_size == 1:
            return self.network
        if self._config.sync_bn and self._cuda:
            self.network = nn.SyncBatchNorm.convert_sync_batchnorm(self.network)
        return DistributedDataParallel(self.network)

    def _manager(self) -> CFManager | None:
        config = self._config
        if config.chk_policy == "none":
            return None
        objects = {"model": self.network, "optimizer": self._optimizer, "scheduler": self._scheduler, "scaler": self._scaler}
        manual = config.chk_policy == "epoch" or (config.chk_policy == "sync" and config.chk_freq > 0)
        return CFManager(
            config.store,
            CFCheckpoint(**objects, history=self.history),
            overwrite=not config.keep_all,
            mode=CFMode.MANUAL if manual else CFMode.AUTO,
            in_flight=config.in_flight,
            parts=self._parts,
            layout=config.layout,
            job={"job": "checkfreq", "network": config.network, "seed": config.seed},
        )

    def _iterator(self) -> CFIterator:
        config = self._config
        left = self.manager.restore() if self.manager is not None and config.resume else None
        iterator = CFIterator(
            self._loader, bs=config.batch_size, arch=config.network.replace(" ", "-"),
            chk_freq=0 if config.chk_policy in ("epoch", "none") else config.chk_freq, steps_to_run=config.steps_per_run,
            max_overhead=config.max_overhead, dynamic=config.dynamic, cf_manager=self.manager, seconds=config.chk_seconds,
            mtbf_s=config.mtbf, synchronous=config.chk_policy == "sync", reprofile=config.reprofile,
            cache=config.profile_cache,
        )  # fmt: skip
        iterator.before_epoch_checkpoint = self._close_epoch
        if left is not None:
            iterator.load_state_dict(left)
        return iterator

    def run(self, tables: ResultTables) -> None:
        """Train the remaining epochs."""
        begin_s = time.perf_counter()
        while self.iterator.epoch < self._config.epochs and not self.iterator.exit:
            epoch = self.iterator.epoch + 1
            with self._log.interval("epoch", epoch_num=epoch):
                self._train_epoch(epoch, tables)
            if self.iterator.exit:
                return
            loss = self.history.train_loss[-1]
            self._log.point("train_loss", loss, epoch_num=epoch)
            top1, top5 = self._evaluate(epoch) if self._evaluation is not None else (math.nan, math.nan)
            tables.epoch(epoch, time.perf_counter() - begin_s, top1, top5, loss)

    def _train_epoch(self, epoch: int, tables: ResultTables) -> None:
        self._model.train()
        waited = self.manager.stalls if self.manager else None
        taken = len(waited.each_s) if waited else 0
        asked_ns = time.monotonic_ns()
        while True:
            position, stalled_s = self._batches.position, waited.total_s if waited else 0.0
            batch = next(self.iterator, None)
            if batch is None:
                break
            arrived_ns = time.monotonic_ns()
            loss = self._step(batch, epoch)
            done_ns = time.monotonic_ns()
            self._consumed(epoch, position, loss)
            self.times.add(asked_ns, arrived_ns, done_ns)
            state = self.iterator.state_dict()
            checkpoints = len(waited.each_s) if waited else 0
            stall_s = (waited.total_s if waited else 0.0) - stalled_s
            self._parts.log("step_end", asked_ns, done_ns - asked_ns, epoch_num=epoch, step_num=state["iter"])
            tables.step(epoch, state["iter"], (done_ns - asked_ns) / 1e9, (arrived_ns - asked_ns) / 1e9,
                        (done_ns - arrived_ns) / 1e9, stall_s, checkpoints > taken, self.iterator.interval, loss)  # fmt: skip
            taken = checkpoints
            if self._config.print_freq and state["iter"] % self._config.print_freq == 0 and self._ranks.rank == 0:
                print(f"epoch {epoch} step {state['iter']} loss {loss:.4f} {(done_ns - asked_ns) / 1e9:.3f} s", flush=True)
            asked_ns = done_ns
            if 0 <= self._config.iters <= state["iter"]:
                self.iterator.end_epoch_here()

    def _step(self, batch: list[Tensor], epoch: int) -> float:
        """Update the weights from one batch and return the mean loss of all ranks."""
        images, labels = (each.to(self._ranks.device, non_blocking=True) for each in batch)
        precision = torch.autocast(self._ranks.device.type) if self._config.amp else contextlib.nullcontext()
        with self._parts.measure("all_compute", epoch_num=epoch):
            self._optimizer.zero_grad(set_to_none=True)
            with precision:
                loss = functional.cross_entropy(self._model(images), labels)
            self._scaler.scale(loss).backward()
            self._scaler.step(self._optimizer)
            self._scaler.update()
            value = self._ranks.sum(float(loss.item()))[0] / self._ranks.world_size
        if self._config.barrier:
            self._ranks.sum(0)
        if not math.isfinite(value):
            raise IotwinError(f"the loss of epoch {epoch} is {value}: training diverged; lower --lr")
        return value

    def _consumed(self, epoch: int, position: Position, loss: float) -> None:
        """Record a step that began at `position`: its loss and the samples that it consumed."""
        self.history.loss += loss
        self.history.loss_steps += 1
        order = self._batches.order()
        if self._ranks.rank == 0:
            ended = after(position)
            everybody = order(np.arange(position.position, ended.position, dtype=np.int64))
            self.history.order_sha256 = order_digest(self.history.order_sha256, everybody.tolist())
        if self._config.index_log is not None:
            steps = self.iterator.state_dict()["steps_so_far"]
            own = self._batches.indices(position)
            append_line(self._config.index_log, " ".join(map(str, (self._ranks.rank, epoch, steps, *own))))

    def _close_epoch(self) -> None:
        """Complete the results of the epoch. The iterator calls this before it takes the checkpoint of the epoch's end."""
        self.history.train_loss.append(self.history.loss / max(1, self.history.loss_steps))
        self.history.loss, self.history.loss_steps = 0.0, 0
        self._scheduler.step()

    def _evaluate(self, epoch: int) -> tuple[float, float]:
        """Return the top-1 and top-5 accuracy, as shares of the images."""
        self._model.eval()
        right = [0.0, 0.0, 0.0]
        with torch.no_grad(), self._log.interval("eval", epoch_num=epoch):
            for images, labels in self._evaluation or ():
                scores = self.network(images.to(self._ranks.device))
                guesses = scores.topk(min(5, scores.shape[1]), dim=1).indices.cpu() == labels[:, None]
                right[0] += float(guesses[:, 0].sum())
                right[1] += float(guesses.sum())
                right[2] += len(labels)
            top1, top5, count = self._ranks.sum(*right)
        shares = (top1 / count, top5 / count) if count else (math.nan, math.nan)
        self._log.point("eval_accuracy", shares[0], epoch_num=epoch)
        self.history.evaluations.append({"epoch": epoch, "top1": shares[0], "top5": shares[1]})
        return shares


def train(config: CheckFreqConfig) -> dict[str, Any] | None:
    """Run the job of `config`. Return its result on rank 0, None on other ranks.

    Raises IotwinError if data, checkpoints or output are unusable.
    """
    with join_ranks() as ranks:
        log = MlLog(sys.stdout if ranks.rank == 0 else None)
        with log.interval("init"):
            job = CheckFreqJob(config, ranks, log)
        tables = ResultTables(config.output, ranks.rank)
        begin = time.perf_counter()
        try:
            with log.interval("run"), job.manager or contextlib.nullcontext():
                job.run(tables)
        finally:
            tables.close()
        seconds = time.perf_counter() - begin
    return _result(config, ranks, job, seconds) if ranks.rank == 0 else None


def _result(config: CheckFreqConfig, ranks: TorchRanks, job: CheckFreqJob, run_s: float) -> dict[str, Any]:
    history, manager = job.history, job.manager
    cuda = ranks.device.type == "cuda"
    return {
        "epochs": config.epochs, "steps": len(job.times), "train_loss": history.train_loss, "evaluations": history.evaluations,
        "run_s": run_s, **job.times.summary(), "world_size": ranks.world_size,
        "device": torch.cuda.get_device_name(ranks.device) if cuda else f"cpu, {counted(torch.get_num_threads(), 'thread')}",
        "parameters": sum(parameter.numel() for parameter in job.network.parameters()),
        "stopped": job.iterator.exit, "resumed_from": manager.restored_from if manager else None,
        "weights_sha256": weights_sha256([job.network]), "order_sha256": history.order_sha256,
        "checkpoints": _checkpoints(config, job), "configuration": plain_configuration(config),
    }  # fmt: skip


def _checkpoints(config: CheckFreqConfig, job: CheckFreqJob) -> dict[str, Any]:
    """Return the policy of the run's checkpoints and their costs in seconds, by name. A list has one value per checkpoint."""
    manager, iterator = job.manager, job.iterator
    if manager is None:
        return {"policy": "none", "interval": None, "intervals": [], "count": 0}
    synchronous = config.chk_policy in ("sync", "epoch")
    return {
        "policy": config.chk_policy,
        "interval": iterator.interval or None,
        "intervals": [list(each) for each in iterator.intervals],
        "snapshot": None if synchronous else manager.snapshot,
        "worker": None if synchronous else manager.worker,
        "count": len(manager.persisted),
        "in_flight": config.in_flight,
        "size_bytes": manager.persisted[-1].size_bytes if manager.persisted else 0,
        "stall_s": manager.stalls.each_s,
        "stall_total_s": manager.stalls.total_s,
        "snapshot_s": [each.copy_s for each in manager.persisted],
        "persist_s": [each.write_s for each in manager.persisted],
        "persist_cpu_s": [each.cpu_s for each in manager.persisted],
        "profile": iterator.measured.document() if iterator.measured else None,
        "windows": [asdict(window) for window in iterator.windows],
    }
