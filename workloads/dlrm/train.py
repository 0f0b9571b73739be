"""Trains DLRM, with an evaluation and a checkpoint after every `eval_every`-th step."""

import math
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import torch
from torch import distributed
from torch.nn import functional

from iotwin.common.checkpoints import Position
from iotwin.common.errors import IotwinError, UsageError
from iotwin.common.files import make_folder
from iotwin.common.mllog import MlLog
from iotwin.common.units import counted
from iotwin.datagen.layouts import DlrmLayout
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import Result, plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.common.torch_ranks import TorchRanks, join_ranks
from iotwin.workloads.common.variant import INSTRUMENTED
from iotwin.workloads.dlrm.config import DlrmConfig
from iotwin.workloads.dlrm.data import Batch, BatchFile, batch_order, table_rows
from iotwin.workloads.dlrm.metrics import roc_auc
from iotwin.workloads.dlrm.model import Dlrm
from iotwin.workloads.state.keeper import Keeper, ResumedJob
from iotwin.workloads.state.position import after, begin, go_on
from iotwin.workloads.state.save import save
from iotwin.workloads.state.torch_state import TORCH, weights_sha256

CHECKPOINT = "checkpoint.pt"


@dataclass
class DlrmHistory:
    """The losses, evaluations and step times of a job so far."""

    loss: list[float] = field(default_factory=list)  # one per step
    evaluations: list[dict[str, float]] = field(default_factory=list)  # keys: step, accuracy, roc_auc
    times: StepMeter = field(default_factory=StepMeter)


class DlrmJob:
    """A training job. A single process uses all devices; each of several ranks takes its share of every batch."""

    def __init__(self, config: DlrmConfig, ranks: TorchRanks, log: MlLog) -> None:
        self._config, self._ranks, self._log, self.history = config, ranks, log, DlrmHistory()
        if config.batch_size % ranks.world_size:
            raise UsageError(f"--batch-size {config.batch_size} cannot be shared by {ranks.world_size} ranks; choose a multiple")
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.devices = _devices() if ranks.world_size == 1 else [ranks.device]
        settle = torch.cuda.synchronize if self.devices[0].type == "cuda" else None
        self._parts = Parts(config.variant == INSTRUMENTED, settle)
        share = config.batch_size // ranks.world_size
        self._training = BatchFile(config.data / DlrmLayout.TRAIN_NAME, share, self._parts)
        self._batches = self._training.batches // ranks.world_size
        if not self._batches:
            raise IotwinError(f"{config.data} has too few samples for one batch of {config.batch_size}; generate more data")
        self._test = None
        if config.eval_every:
            self._test = BatchFile(config.data / DlrmLayout.TEST_NAME, config.eval_batch_size, self._parts, "eval_")
        rows = table_rows(config.most_categories).tolist()
        self.model = Dlrm(rows, config.embedding_size, config.bottom, config.top, self.devices)
        self._optimizer = torch.optim.SGD(self.model.parameters(), config.learning_rate)
        identity = {
            "job": "dlrm",
            "network": config.network,
            "seed": config.seed,
            "batch_size": config.batch_size,
            "shuffle": config.shuffle,
        }
        self.keeper = Keeper(config.state, config.output, ranks, identity, TORCH)
        if resumed := self.keeper.resume():
            self._resume(resumed)
        if ranks.rank == 0:
            make_folder(config.output)
        log.point("seed", config.seed)
        log.point("global_batch_size", config.batch_size)
        log.point("train_samples", self._batches * config.batch_size)

    def run(self) -> None:
        """Train, and evaluate and save after every `eval_every`-th step. The intervals logged for these actions never overlap."""
        config, every, done = self._config, self._config.eval_every or self._config.steps, self.keeper.steps
        order = islice(batch_order(self._batches, config.steps, config.shuffle, config.seed), done, None)
        while done < config.steps and not self.keeper.stops:
            until = min(done - done % every + every, config.steps)
            with self._log.interval("training", first_step_num=done, step_count=until - done):
                reason = self._train(order, done, until)
            done = self.keeper.steps
            if self._test is not None and done % every == 0 and self._ranks.rank == 0:
                self._evaluate(done, self._test)
                self._checkpoint(done)
            if reason:
                self._keep(reason, done)

    def _train(self, order: Iterator[int], first: int, until: int) -> str | None:
        """Train from step `first` to `until`, or until a checkpoint is due or the job must stop.

        Returns the reason for the checkpoint, None if none is due.
        """
        asked_ns = time.monotonic_ns()
        size, ranks = self._config.batch_size, self._ranks
        share = size // ranks.world_size
        for step, number in zip(range(first, until), order, strict=False):
            batch = self._training.read(number * ranks.world_size + ranks.rank, self._config.most_categories)
            arrived_ns = time.monotonic_ns()
            self._parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, step_num=step)
            loss = self._step(batch, step)
            done_ns = time.monotonic_ns()
            self._parts.log("step_end", asked_ns, done_ns - asked_ns, step_num=step)
            self.history.times.add(asked_ns, arrived_ns, done_ns)
            asked_ns = done_ns
            if not math.isfinite(loss):
                raise IotwinError(f"the loss of step {step} is {loss}: training diverged; lower --learning-rate")
            self.history.loss.append(loss)
            own = number * size + ranks.rank * share
            self.keeper.consumed(1 + step // self._batches, range(own, own + share), [number])
            reason = self.keeper.due(1 + step // self._batches)
            if reason or self.keeper.stops:
                return reason
        return None

    def _position(self, step: int) -> Position:
        """Return the position in the data after `step` steps, as for a single rank, because the ranks share each batch."""
        epoch, done = divmod(step, self._batches)
        config = self._config
        return after(begin(config.seed, epoch + 1, self._batches * config.batch_size, config.batch_size, 1), done)

    def _keep(self, reason: str, step: int) -> None:
        with self._log.interval("checkpoint", step_num=step):
            shared = {"model": self.model.state_dict(), "optimizer": self._optimizer.state_dict()}
            self.keeper.keep(self._position(step), reason, shared, {})

    def _resume(self, resumed: ResumedJob) -> None:
        expected = self._position(self.keeper.steps)
        go_on(resumed.position, expected.samples, expected.batch_size, 1)
        if resumed.position != expected or self.keeper.steps >= self._config.steps:
            raise IotwinError(f"the checkpoint ended step {self.keeper.steps}; give --steps a higher number to go on")
        self.model.load_state_dict(resumed.shared["model"])
        self._optimizer.load_state_dict(resumed.shared["optimizer"])
        for group in self._optimizer.param_groups:  # the option --learning-rate overrides the checkpoint's rate
            group["lr"] = self._config.learning_rate

    def _step(self, batch: Batch, step: int) -> float:
        measure = self._parts.measure
        with measure("load_batch_gpu", step_num=step):
            dense, categories, labels = (torch.from_numpy(array).to(self.devices[0]) for array in batch)
        with measure("all_compute", step_num=step):
            self._optimizer.zero_grad(set_to_none=True)
            with measure("model_forward_pass", step_num=step):
                scores = self.model(dense, categories)
            with measure("loss_tensor_calc", step_num=step):
                loss = functional.binary_cross_entropy_with_logits(scores, labels)
            with measure("model_backward_pass", step_num=step):
                loss.backward()
                self._average_gradients()
            with measure("model_optim_step", step_num=step):
                self._optimizer.step()
            with measure("cum_loss_fn_calc", step_num=step):
                [total] = self._ranks.sum(float(loss.item()))
                return total / self._ranks.world_size

    def _average_gradients(self) -> None:
        """Average the gradients of all ranks, as if one rank had the whole batch. Gradients of embeddings remain sparse."""
        if self._ranks.world_size > 1:
            for parameter in self.model.parameters():
                if parameter.grad is not None:
                    gradient = parameter.grad.coalesce() if parameter.grad.is_sparse else parameter.grad
                    distributed.all_reduce(gradient)
                    parameter.grad = gradient / self._ranks.world_size

    def _evaluate(self, step: int, file: BatchFile) -> None:
        count = min(self._config.eval_batches, file.batches)
        found: list[np.ndarray] = []
        truth: list[np.ndarray] = []
        with self._log.interval("eval", step_num=step):
            with torch.inference_mode():
                for index in range(count):
                    scores, labels = self._evaluate_batch(file, index)
                    found.append(scores)
                    truth.append(labels)
            with self._parts.measure("eval_metrics_compute", step_num=step):
                scores, labels = np.concatenate(found), np.concatenate(truth)
                accuracy, auc = float(((scores > 0) == (labels > 0)).mean()), roc_auc(scores, labels)
        self.history.evaluations.append({"step": step, "accuracy": accuracy, "roc_auc": auc})
        self._log.point("eval_accuracy", accuracy, step_num=step)

    def _evaluate_batch(self, file: BatchFile, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (scores, labels) of the batch `number` of the test file, both of shape (n,)."""
        measure, begin_ns = self._parts.measure, time.monotonic_ns()
        batch = file.read(number, self._config.most_categories)
        self._parts.log("eval_load_batch_mem", begin_ns, time.monotonic_ns() - begin_ns, step_num=number)
        with measure("eval_load_batch_gpu", step_num=number):
            dense, categories = (torch.from_numpy(array).to(self.devices[0]) for array in batch[:2])
        with measure("eval_compute", step_num=number):
            with measure("eval_forward_pass", step_num=number):
                logits = self.model(dense, categories)
            with measure("eval_score_compute", step_num=number):
                scores = logits.cpu().numpy()
        self._parts.log("eval_step_end", begin_ns, time.monotonic_ns() - begin_ns, step_num=number)
        return scores, batch.labels

    def _checkpoint(self, step: int) -> None:
        with self._log.interval("checkpoint", step_num=step):
            state = {
                "step": step,
                "network": self._config.network,
                "model": self.model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "evaluation": self.history.evaluations[-1],
            }
            save(state, self._config.output / CHECKPOINT)

    def close(self) -> None:
        """Close the files."""
        self._training.close()
        if self._test is not None:
            self._test.close()


def _devices() -> list[torch.device]:
    count = torch.cuda.device_count()
    return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]


def train(config: DlrmConfig) -> Result | None:
    """Run the job that `config` describes. Return its result on rank 0, None on other ranks.

    Raises IotwinError if data, checkpoints or output are unusable.
    """
    with join_ranks() as ranks:
        log = MlLog(sys.stdout if ranks.rank == 0 else None)
        with log.interval("init"):
            job = DlrmJob(config, ranks, log)
        begin = time.perf_counter()
        with log.interval("run"), job.keeper:
            job.run()
        run_s = time.perf_counter() - begin
    job.close()
    return _result(config, ranks, job, run_s) if ranks.rank == 0 else None


def _result(config: DlrmConfig, ranks: TorchRanks, job: DlrmJob, run_s: float) -> Result:
    losses = job.history.loss
    tenth = max(1, len(losses) // 10)
    cpu = f"cpu, {counted(torch.get_num_threads(), 'thread')}"
    return {
        "steps": len(losses), "first_loss": sum(losses[:tenth]) / tenth, "last_loss": sum(losses[-tenth:]) / tenth,
        "evaluations": job.history.evaluations, "run_seconds": run_s,
        **job.history.times.summary(), **job.keeper.result(), "weights_sha256": weights_sha256([job.model]),
        "parameters": sum(parameter.numel() for parameter in job.model.parameters()), "world_size": ranks.world_size,
        "device": ", ".join(torch.cuda.get_device_name(device) for device in job.devices if device.type == "cuda") or cpu,
        "torch": torch.__version__, "configuration": plain_configuration(config),
    }  # fmt: skip
