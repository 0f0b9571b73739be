"""Trains the 3-D U-Net, with evaluations and checkpoints after the epochs that the options specify."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError
from iotwin.common.files import make_folder
from iotwin.common.mllog import MlLog, Value
from iotwin.common.units import counted
from iotwin.datagen.layouts import Unet3dLayout
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.common.variant import TIMED, SleptSteps, parse_sleep
from iotwin.workloads.state.keeper import Keeper, ResumedJob
from iotwin.workloads.state.options import NEVER
from iotwin.workloads.state.position import after, go_on, positions_of, steps_done, steps_left
from iotwin.workloads.state.save import State, save
from iotwin.workloads.state.torch_state import TORCH, weights_sha256
from iotwin.workloads.unet3d import checkpoint
from iotwin.workloads.unet3d.config import Unet3dConfig
from iotwin.workloads.unet3d.data import Sample, evaluation_loader, training_loader
from iotwin.workloads.unet3d.evaluate import evaluate
from iotwin.workloads.unet3d.loss import dice_cross_entropy
from iotwin.workloads.unet3d.model import UNet3d

_MOMENTUM = 0.9


@dataclass
class Unet3dHistory:
    """The losses, evaluations and step times of a job so far."""

    train_loss: list[float] = field(default_factory=list)  # per epoch, the mean over steps and ranks
    evaluations: list[dict[str, float]] = field(default_factory=list)  # keys: epoch, mean_dice
    times: StepMeter = field(default_factory=StepMeter)


class Unet3dJob:
    """One rank's share of a training job: its network, its loaders and its position."""

    def __init__(self, config: Unet3dConfig, ranks: TorchRanks, log: MlLog) -> None:
        self._config, self._ranks, self._log = config, ranks, log
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        training, evaluation = Unet3dLayout.split(Unet3dLayout.discover(config.data))
        self._training, self._batches = training_loader(training, config, ranks)
        self._evaluation = evaluation_loader(evaluation, config, ranks)
        if config.eval_every and not evaluation:
            raise IotwinError(f"{config.data} has no case left for evaluation; generate more data or give --eval-every 0")
        self.network = UNet3d(config.base_channels, config.depth).to(ranks.device, memory_format=torch.channels_last_3d)
        self._model: nn.Module = DistributedDataParallel(self.network) if ranks.world_size > 1 else self.network
        self._optimizer = torch.optim.SGD(self.network.parameters(), config.learning_rate, momentum=_MOMENTUM, nesterov=True)
        self._best_score = -math.inf
        self._unsaved_best: State | None = None
        self.epoch = 0  # last epoch that ended
        self.history = Unet3dHistory()
        self._loss, self._loss_steps = 0.0, 0  # sum of this rank's losses in the epoch so far, and their number
        identity = {"job": "unet3d", "network": config.network, "seed": config.seed}
        file = Path(config.state.resume)
        of_epoch = file.suffix == ".pt"  # a checkpoint in the format of MLPerf's job, taken at the end of an epoch
        state = replace(config.state, resume=NEVER) if of_epoch else config.state
        self.keeper = Keeper(state, config.output, ranks, identity, TORCH)
        if of_epoch:
            self._resume_epoch(file)
        elif resumed := self.keeper.resume():
            self._resume(resumed, len(training))
        if ranks.rank == 0:
            make_folder(config.output)
        settle = torch.cuda.synchronize if ranks.device.type == "cuda" else None
        self._parts = Parts(config.variant in TIMED, settle, rank=ranks.rank)
        self._slept = SleptSteps(parse_sleep(config.sleep), config.seed, ranks.rank) if config.sleep is not None else None
        self._log_points(len(training), len(evaluation))

    def _log_points(self, training: int, evaluation: int) -> None:
        config, world_size = self._config, self._ranks.world_size
        points = {
            "seed": config.seed,
            "world_size": world_size,
            "num_workers": config.workers,
            "global_batch_size": config.batch_size * world_size,
            "train_samples": training,
            "eval_samples": evaluation,
        }
        for key, value in points.items():
            self._log.point(key, value)

    def run(self) -> None:
        """Train the remaining epochs. Evaluate after every `eval_every`-th epoch, save after every `checkpoint_every`-th."""
        for epoch in range(self.epoch + 1, self._config.epochs + 1):
            loss = self._train_epoch(epoch)
            if self.keeper.stops:
                return
            self.epoch = epoch
            self.history.train_loss.append(loss)
            self._log.point("train_loss", loss, epoch_num=epoch)
            if self._slept:  # in the variant sleep, the network did not learn, so there is nothing to evaluate or save
                continue
            if self._config.eval_every and epoch % self._config.eval_every == 0:
                self._evaluate()
            if self._config.checkpoint_every and epoch % self._config.checkpoint_every == 0:
                self._checkpoint()

    def _train_epoch(self, epoch: int) -> float:
        """Train the rest of an epoch. Return the mean loss over all its steps and ranks; nan if the job stops before the end."""
        self._batches.set_epoch(epoch)
        steps = self._steps(epoch, self._batches.position)
        while steps_left(self._batches.position) and not self.keeper.stops:
            reason = None
            with self._log.interval("block" if self.keeper.active else "epoch", epoch_num=epoch):
                for position in steps:
                    self._batches.position = position
                    reason = self.keeper.due(epoch)
                    if reason or self.keeper.stops:
                        break
            if reason:
                self._keep(reason)
        if self.keeper.stops:
            return math.nan
        next(steps, None)  # exhausts the loader, which then ends its workers
        loss, count = self._ranks.sum(self._loss, self._loss_steps)
        self._loss, self._loss_steps = 0.0, 0
        if not math.isfinite(loss):
            raise IotwinError(f"the loss of epoch {epoch} is {loss}: training diverged; lower --learning-rate")
        return loss / count

    def _steps(self, epoch: int, position: Position) -> Iterator[Position]:
        """Train the epoch's remaining steps. Yield the position in the data after each step."""
        order = [index for _, index in self._batches.order()]
        asked_ns = time.monotonic_ns()
        fetching = iter(self._training)
        done = steps_done(position)
        for step in range(done, done + steps_left(position)):
            own = positions_of(position, self._ranks.rank)
            batch = next(fetching) if own else None
            arrived_ns = time.monotonic_ns()
            where: dict[str, Value] = {"epoch_num": epoch, "step_num": step}
            self._parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, **where)
            if self._slept:
                with self._parts.measure("all_compute", **where):
                    self._slept.next_step()
            else:
                self._loss += self._step(batch, self._weight(position), where)
            self._loss_steps += 1
            done_ns = time.monotonic_ns()
            self._parts.log("step_end", asked_ns, done_ns - asked_ns, **where)
            self.history.times.add(asked_ns, arrived_ns, done_ns)
            before, position = position, after(position)
            self.keeper.consumed(epoch, [order[place] for place in own], order[before.position : position.position])
            yield position
            asked_ns = time.monotonic_ns() if self.keeper.active else done_ns
        next(fetching, None)

    def _weight(self, position: Position) -> float:
        """Return the weight of this rank's loss in the mean over ranks: its number of samples divided by the ranks' mean number.

        The weight is 1 except in a short last step of an epoch that was resumed on another number of ranks.
        """
        taken = after(position).position - position.position
        return len(positions_of(position, self._ranks.rank)) * position.world_size / taken

    def _step(self, batch: Sample | None, weight: float, where: dict[str, Value]) -> float:
        """Update the weights from one batch, wait until the device is done, and return the loss.

        A rank without a batch computes on zeros with weight 0, because all ranks must take part in the sum of gradients.
        """
        measure = self._parts.measure
        image, label = batch or (torch.zeros(1, 1, *self._config.crop), torch.zeros(1, 1, *self._config.crop))
        with measure("load_batch_gpu", **where):
            image = image.to(self._ranks.device, non_blocking=True)
            label = label.to(self._ranks.device, non_blocking=True)
        with measure("all_compute", **where):
            self._optimizer.zero_grad(set_to_none=True)
            with measure("model_forward_pass", **where):
                scores = self._model(image)
            with measure("loss_tensor_calc", **where):
                loss = dice_cross_entropy(scores, label[:, 0].long())
                if weight != 1:
                    loss = loss * weight
            with measure("model_backward_pass", **where):
                loss.backward()
            with measure("model_optim_step", **where):
                self._optimizer.step()
            with measure("cum_loss_fn_calc", **where):
                return float(loss.item())

    def _evaluate(self) -> None:
        with self._log.interval("eval", epoch_num=self.epoch):
            # `self.network` lacks the distributed wrapper, which would make ranks wait for others that have more windows.
            total, count = evaluate(self.network, self._evaluation, self._config, self._ranks.device, self._parts)
            with self._parts.measure("eval_scores_and_loss_reduction", epoch_num=self.epoch):
                total, cases = self._ranks.sum(total, count)
        score = total / cases
        self.history.evaluations.append({"epoch": self.epoch, "mean_dice": score})
        self._log.point("eval_accuracy", score, epoch_num=self.epoch)
        if score > self._best_score:
            self._best_score = score
            self._unsaved_best = _on_cpu(self._state()) if self._ranks.rank == 0 else None

    def _checkpoint(self) -> None:
        with self._log.interval("checkpoint", epoch_num=self.epoch):
            if self._ranks.rank == 0:
                # BEST is written before LAST: LAST holds the best score, and the weights with this score must then be on disk.
                if self._unsaved_best:
                    save(self._unsaved_best, self._config.output / checkpoint.BEST)
                    self._unsaved_best = None
                save(self._state(), self._config.output / checkpoint.LAST)
            self._ranks.sum(0)  # the other ranks wait here until rank 0 has written

    def _state(self) -> State:
        return {
            "epoch": self.epoch,
            "best_score": self._best_score,
            "network": self._config.network,
            "model": self.network.state_dict(),
            "optimizer": self._optimizer.state_dict(),
        }

    def _keep(self, reason: str) -> None:
        """Write a checkpoint of the whole state, from which the job can resume within an epoch."""
        with self._log.interval("checkpoint", epoch_num=self._batches.position.epoch):
            shared = {**self._state(), "best_score": None if self._best_score == -math.inf else self._best_score}
            shared["unsaved_best"] = self._unsaved_best
            self.keeper.keep(self._batches.position, reason, shared, {"loss": self._loss, "loss_steps": self._loss_steps})

    def _resume(self, resumed: ResumedJob, samples: int) -> None:
        """Continue within an epoch, possibly on another number of ranks."""
        state, config = resumed.shared, self._config
        self._batches.position = go_on(resumed.position, samples, config.batch_size, self._ranks.world_size)
        self.epoch = resumed.position.epoch - 1
        if self.epoch >= config.epochs:
            raise IotwinError(f"{config.state.resume} is in epoch {self.epoch + 1}; give --epochs a higher number to go on")
        self._loss, self._loss_steps = (sum(own[key] for own in resumed.own) for key in ("loss", "loss_steps"))
        self._best_score = -math.inf if state["best_score"] is None else state["best_score"]
        self._unsaved_best = state["unsaved_best"]
        self._load(state)

    def _resume_epoch(self, path: Path) -> None:
        state = checkpoint.load(path, self._ranks.device, self._config.network)
        self.epoch, self._best_score = state["epoch"], state["best_score"]
        if self.epoch >= self._config.epochs:
            raise IotwinError(f"{path} ended epoch {self.epoch}; give --epochs a higher number to go on")
        self._load(state)

    def _load(self, state: State) -> None:
        self.network.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:  # --learning-rate replaces the rate in the checkpoint
            group["lr"] = self._config.learning_rate

    def parameter_count(self) -> int:
        """Return the number of the network's weights."""
        return sum(parameter.numel() for parameter in self.network.parameters())


def _on_cpu(state: Any) -> Any:
    """Return a copy of nested dicts and lists whose tensors are copies in host memory."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, list) else state


def train(config: Unet3dConfig) -> dict[str, Any] | None:
    """Run the job that `config` describes. Return its result on rank 0, None on other ranks.

    Raises IotwinError if data, checkpoints or output are unusable.
    """
    with join_ranks() as ranks:
        log = MlLog(sys.stdout if ranks.rank == 0 else None)
        with log.interval("init"):
            job = Unet3dJob(config, ranks, log)
        first_epoch = job.epoch + 1
        begin = time.perf_counter()
        with log.interval("run"), job.keeper:
            job.run()
        seconds = time.perf_counter() - begin
    return _result(config, ranks, job, first_epoch, seconds) if ranks.rank == 0 else None


def _result(config: Unet3dConfig, ranks: TorchRanks, job: Unet3dJob, first_epoch: int, run_s: float) -> dict[str, Any]:
    history = job.history
    device = (
        torch.cuda.get_device_name(ranks.device)
        if ranks.device.type == "cuda"
        else f"cpu, {counted(torch.get_num_threads(), 'thread')}"
    )
    return {
        "first_epoch": first_epoch,
        "epochs": config.epochs,
        "steps": len(history.times),
        "train_loss": history.train_loss,
        "evaluations": history.evaluations,
        "run_seconds": run_s,
        **history.times.summary(),
        **job.keeper.result(),
        "weights_sha256": weights_sha256([job.network]),
        "parameters": job.parameter_count(),
        "world_size": ranks.world_size,
        "device": device,
        "torch": torch.__version__,
        "configuration": plain_configuration(config),
    }
