"""The training loop: steps, and after every so many an evaluation and a checkpoint."""

import math
import sys
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch.nn import functional

from common.errors import IotwinError
from common.mllog import MlLog
from datagen.layouts import DlrmLayout
from workloads.common.parts import Parts
from workloads.common.program import Result, plain_configuration
from workloads.common.steps import StepMeter
from workloads.common.variant import INSTRUMENTED
from workloads.dlrm.config import Config
from workloads.dlrm.data import Batch, BatchFile, batch_order, table_rows
from workloads.dlrm.metrics import roc_auc
from workloads.dlrm.model import Dlrm
from workloads.state.save import save

CHECKPOINT = "checkpoint.pt"


@dataclass
class History:
    """What a job did so far."""

    loss: list[float] = field(default_factory=list)  # of every step
    evaluations: list[dict[str, float]] = field(default_factory=list)  # step, accuracy, roc_auc
    times: StepMeter = field(default_factory=StepMeter)


class Job:
    """A training job: its model over all devices, its files and its position."""

    def __init__(self, config: Config, log: MlLog) -> None:
        self._config, self._log, self.history = config, log, History()
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.devices = _devices()
        settle = torch.cuda.synchronize if self.devices[0].type == "cuda" else None
        self._parts = Parts(config.variant == INSTRUMENTED, settle)
        self._training = BatchFile(config.data / DlrmLayout.TRAIN_NAME, config.batch_size, self._parts)
        self._test = None
        if config.eval_every:
            self._test = BatchFile(config.data / DlrmLayout.TEST_NAME, config.eval_batch_size, self._parts, "eval_")
        rows = table_rows(config.most_categories).tolist()
        self.model = Dlrm(rows, config.embedding_size, config.bottom, config.top, self.devices)
        self._optimizer = torch.optim.SGD(self.model.parameters(), config.learning_rate)
        config.output.mkdir(parents=True, exist_ok=True)
        log.point("seed", config.seed)
        log.point("global_batch_size", config.batch_size)
        log.point("train_samples", self._training.batches * config.batch_size)

    def run(self) -> None:
        """Train, evaluating and saving after every `eval_every`-th step; intervals follow one another, never nested."""
        config, every = self._config, self._config.eval_every or self._config.steps
        order = batch_order(self._training.batches, config.steps, config.shuffle, config.seed)
        for first in range(0, config.steps, every):
            last = min(first + every, config.steps)
            with self._log.interval("training", first_step_num=first, step_count=last - first):
                self._train([next(order) for _ in range(last - first)], first)
            if self._test is not None and last == first + every:
                self._evaluate(last, self._test)
                self._checkpoint(last)

    def _train(self, numbers: list[int], first: int) -> None:
        asked_ns = time.monotonic_ns()
        for step, number in enumerate(numbers, first):
            batch = self._training.read(number, self._config.most_categories)
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

    def _step(self, batch: Batch, step: int) -> float:
        """Update the weights from `batch` and return its loss."""
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
            with measure("model_optim_step", step_num=step):
                self._optimizer.step()
            with measure("cum_loss_fn_calc", step_num=step):
                return float(loss.item())

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
        """Return the scores and the labels of test batch `number`."""
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
            state = {"step": step, "network": self._config.network, "model": self.model.state_dict(),
                     "optimizer": self._optimizer.state_dict(), "evaluation": self.history.evaluations[-1]}  # fmt: skip
            save(state, self._config.output / CHECKPOINT)

    def close(self) -> None:
        """Close the files."""
        self._training.close()
        if self._test is not None:
            self._test.close()


def _devices() -> list[torch.device]:
    count = torch.cuda.device_count()
    return [torch.device("cuda", index) for index in range(count)] or [torch.device("cpu")]


def train(config: Config) -> Result:
    """Run the job that `config` describes and return its result; IotwinError for data and output that cannot be used."""
    log = MlLog(sys.stdout)
    with log.interval("init"):
        job = Job(config, log)
    begin = time.perf_counter()
    with log.interval("run"):
        job.run()
    run_s = time.perf_counter() - begin
    job.close()
    history, tenth = job.history, max(1, config.steps // 10)
    cpu = f"cpu, {torch.get_num_threads()} threads"
    return {
        "steps": config.steps, "first_loss": sum(history.loss[:tenth]) / tenth, "last_loss": sum(history.loss[-tenth:]) / tenth,
        "evaluations": history.evaluations, "run_seconds": run_s,
        **history.times.summary(),
        "parameters": sum(parameter.numel() for parameter in job.model.parameters()),
        "device": ", ".join(torch.cuda.get_device_name(device) for device in job.devices if device.type == "cuda") or cpu,
        "torch": torch.__version__, "configuration": plain_configuration(config),
    }  # fmt: skip
