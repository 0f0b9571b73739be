"""The training loop: epochs of steps, and after some of them an evaluation and a checkpoint."""

import math
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from common.errors import IotwinError
from common.mllog import MlLog, Value
from datagen.layouts import Unet3dLayout
from workloads.common.parts import Parts
from workloads.common.program import plain_configuration
from workloads.common.steps import StepMeter
from workloads.common.torch_ranks import Ranks, join_ranks
from workloads.common.variant import TIMED, SleptSteps, parse_sleep
from workloads.state.save import State, save
from workloads.unet3d import checkpoint
from workloads.unet3d.config import Config
from workloads.unet3d.data import evaluation_loader, training_loader
from workloads.unet3d.evaluate import evaluate
from workloads.unet3d.loss import dice_cross_entropy
from workloads.unet3d.model import UNet3d

_MOMENTUM = 0.9


@dataclass
class History:
    """What a job did so far."""

    train_loss: list[float] = field(default_factory=list)  # mean over the epoch's steps and ranks
    evaluations: list[dict[str, float]] = field(default_factory=list)  # epoch and mean_dice
    times: StepMeter = field(default_factory=StepMeter)  # of this rank


class Job:
    """One rank's share of a training job: its network, its loaders and its position."""

    def __init__(self, config: Config, ranks: Ranks, log: MlLog) -> None:
        self._config, self._ranks, self._log = config, ranks, log
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        training, evaluation = Unet3dLayout.split(Unet3dLayout.discover(config.data))
        self._training, self._sampler = training_loader(training, config, ranks)
        self._evaluation = evaluation_loader(evaluation, config, ranks)
        if config.eval_every and not evaluation:
            raise IotwinError(f"{config.data} has no case left for evaluation; generate more data or give --eval-every 0")
        self._network = UNet3d(config.base_channels, config.depth).to(ranks.device, memory_format=torch.channels_last_3d)
        self._model: nn.Module = DistributedDataParallel(self._network) if ranks.world_size > 1 else self._network
        self._optimizer = torch.optim.SGD(self._network.parameters(), config.learning_rate, momentum=_MOMENTUM, nesterov=True)
        self._policy = checkpoint.EveryEpochs(config.checkpoint_every)
        self._best_score = -math.inf
        self._unsaved_best: State | None = None
        self.epoch = 0  # the last one that ended
        self.history = History()
        if config.resume:
            self._resume(config.resume)
        if ranks.rank == 0:
            config.output.mkdir(parents=True, exist_ok=True)
        settle = torch.cuda.synchronize if ranks.device.type == "cuda" else None
        self._parts = Parts(config.variant in TIMED, settle, rank=ranks.rank)
        self._slept = SleptSteps(parse_sleep(config.sleep), config.seed, ranks.rank) if config.sleep is not None else None
        self._log_points(len(training), len(evaluation))

    def _log_points(self, training: int, evaluation: int) -> None:
        config, world_size = self._config, self._ranks.world_size
        points = {
            "seed": config.seed, "world_size": world_size, "num_workers": config.workers,
            "global_batch_size": config.batch_size * world_size, "train_samples": training, "eval_samples": evaluation,
        }  # fmt: skip
        for key, value in points.items():
            self._log.point(key, value)

    def run(self) -> None:
        """Train the epochs that are left, evaluating and saving after those that the configuration names."""
        for epoch in range(self.epoch + 1, self._config.epochs + 1):
            with self._log.interval("epoch", epoch_num=epoch):
                loss = self._train_epoch(epoch)
            self.epoch = epoch
            self.history.train_loss.append(loss)
            self._log.point("train_loss", loss, epoch_num=epoch)
            if self._slept:  # whose network learns nothing: there is nothing to evaluate or to keep
                continue
            if self._config.eval_every and epoch % self._config.eval_every == 0:
                self._evaluate()
            if self._policy.should_checkpoint(epoch):
                self._checkpoint()

    def _train_epoch(self, epoch: int) -> float:
        """Return the mean loss of the epoch's steps over all ranks."""
        self._sampler.set_epoch(epoch)
        total = 0.0
        asked_ns = time.monotonic_ns()
        for step, (image, label) in enumerate(self._training):
            arrived_ns = time.monotonic_ns()
            where: dict[str, Value] = {"epoch_num": epoch, "step_num": step}
            self._parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, **where)
            if self._slept:
                with self._parts.measure("all_compute", **where):
                    self._slept.next_step()
            else:
                total += self._step(image, label, where)
            done_ns = time.monotonic_ns()
            self._parts.log("step_end", asked_ns, done_ns - asked_ns, **where)
            self.history.times.add(asked_ns, arrived_ns, done_ns)
            asked_ns = done_ns
        loss, steps = self._ranks.sum(total, len(self._training))
        if not math.isfinite(loss):
            raise IotwinError(f"the loss of epoch {epoch} is {loss}: training diverged; lower --learning-rate")
        return loss / steps

    def _step(self, image: Tensor, label: Tensor, where: dict[str, Value]) -> float:
        """Update the weights from one batch and return its loss; the loss's value waits for the device to finish."""
        measure = self._parts.measure
        with measure("load_batch_gpu", **where):
            image = image.to(self._ranks.device, non_blocking=True)
            label = label.to(self._ranks.device, non_blocking=True)
        with measure("all_compute", **where):
            self._optimizer.zero_grad(set_to_none=True)
            with measure("model_forward_pass", **where):
                scores = self._model(image)
            with measure("loss_tensor_calc", **where):
                loss = dice_cross_entropy(scores, label[:, 0].long())
            with measure("model_backward_pass", **where):
                loss.backward()
            with measure("model_optim_step", **where):
                self._optimizer.step()
            with measure("cum_loss_fn_calc", **where):
                return float(loss.item())

    def _evaluate(self) -> None:
        with self._log.interval("eval", epoch_num=self.epoch):
            # Not the distributed wrapper: ranks may have unequal numbers of windows, and nothing is to be synchronised.
            total, count = evaluate(self._network, self._evaluation, self._config, self._ranks.device, self._parts)
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
                # The best goes first, so that a last one that knows of a best score never lacks its file.
                if self._unsaved_best:
                    save(self._unsaved_best, self._config.output / checkpoint.BEST)
                    self._unsaved_best = None
                save(self._state(), self._config.output / checkpoint.LAST)
            self._ranks.sum(0)  # the others wait here, as training goes on together

    def _state(self) -> State:
        return {
            "epoch": self.epoch, "best_score": self._best_score, "network": self._config.network,
            "model": self._network.state_dict(), "optimizer": self._optimizer.state_dict(),
        }  # fmt: skip

    def _resume(self, path: Path) -> None:
        state = checkpoint.load(path, self._ranks.device, self._config.network)
        self.epoch, self._best_score = state["epoch"], state["best_score"]
        if self.epoch >= self._config.epochs:
            raise IotwinError(f"{path} ended epoch {self.epoch}; give --epochs a higher number to go on")
        self._network.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        for group in self._optimizer.param_groups:  # the command line's word is the later one
            group["lr"] = self._config.learning_rate

    def parameter_count(self) -> int:
        """Return the number of the network's weights."""
        return sum(parameter.numel() for parameter in self._network.parameters())


def _on_cpu(state: Any) -> Any:
    """Return a copy of nested dicts and lists whose tensors are copies in host memory."""
    if isinstance(state, Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    return [_on_cpu(value) for value in state] if isinstance(state, list) else state


def train(config: Config) -> dict[str, Any] | None:
    """Run the job that `config` describes and return its result on rank 0, None on the others.

    Raises IotwinError for data, checkpoints and output that cannot be used.
    """
    with join_ranks() as ranks:
        log = MlLog(sys.stdout if ranks.rank == 0 else None)
        with log.interval("init"):
            job = Job(config, ranks, log)
        first_epoch = job.epoch + 1
        begin = time.perf_counter()
        with log.interval("run"):
            job.run()
        seconds = time.perf_counter() - begin
    return _result(config, ranks, job, first_epoch, seconds) if ranks.rank == 0 else None


def _result(config: Config, ranks: Ranks, job: Job, first_epoch: int, run_s: float) -> dict[str, Any]:
    history = job.history
    device = (
        torch.cuda.get_device_name(ranks.device) if ranks.device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    )
    return {
        "first_epoch": first_epoch,
        "epochs": config.epochs,
        "steps": len(history.times),
        "train_loss": history.train_loss,
        "evaluations": history.evaluations,
        "run_seconds": run_s,
        **history.times.summary(),
        "parameters": job.parameter_count(),
        "world_size": ranks.world_size,
        "device": device,
        "torch": torch.__version__,
        "configuration": plain_configuration(config),
    }
