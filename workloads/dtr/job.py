"""Trains a network on files within a memory budget, and logs what recomputation and eviction cost in each step."""

import sys
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from iotwin.common.files import make_folder
from iotwin.common.mllog import TENSOR_BYTES, MlLog
from iotwin.common.processes.children import leave_signals_to_rank
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.common.program import plain_configuration
from iotwin.workloads.common.steps import StepMeter
from iotwin.workloads.dtr.config import DtrConfig
from iotwin.workloads.dtr.live.session import Account, Rematerialize
from iotwin.workloads.dtr.record import record_step
from iotwin.workloads.dtr.tasks import training_task
from iotwin.workloads.state.batches import ResumableBatches
from iotwin.workloads.state.torch_state import weights_sha256

# The parts of a step in the order of the log, each with its time in an `Account`. In the step itself, the parts alternate.
_PARTS = {"base_compute": "base_compute_s", "remat_compute": "remat_compute_s", "search": "search_s", "cost": "cost_s"}


class DtrJob:
    """A training job and its position."""

    def __init__(self, config: DtrConfig, log: MlLog) -> None:
        self._config, self._log = config, log
        if config.threads:
            torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self._parts = Parts(True, torch.cuda.synchronize if config.device.startswith("cuda") else None, rank=0)
        task = training_task(config, self._parts)
        self.network, self._loss_of = task.network, task.loss
        self._batches = ResumableBatches(task.samples, config.batch_size, config.seed, 0, 1, with_epoch=True)
        self._loader = DataLoader(
            task.dataset, num_workers=config.workers, batch_sampler=self._batches, worker_init_fn=leave_signals_to_rank
        )
        self._optimizer = torch.optim.SGD(self.network.parameters(), config.learning_rate, momentum=0.9)
        self.session = Rematerialize(config.budget_bytes, config.heuristic, device=config.device, offload=config.offload)
        self.times, self.losses = StepMeter(), list[float]()
        self._steps, self._operations = config.epochs * len(self._batches), list[bytes]()
        points = {
            "seed": config.seed,
            "world_size": 1,
            "num_workers": config.workers,
            "global_batch_size": config.batch_size,
            "train_samples": task.samples,
        }
        if config.budget_bytes is not None:
            points["memory_budget"] = config.budget_bytes
        for key, value in points.items():
            log.point(key, value)

    def run(self) -> None:
        """Train all epochs."""
        with self.session:
            for epoch in range(1, self._config.epochs + 1):
                with self._log.interval("epoch", epoch_num=epoch):
                    self._train_epoch(epoch)
                self._log.point("train_loss", self.losses[-1], epoch_num=epoch)

    def _train_epoch(self, epoch: int) -> None:
        total, steps, asked_ns = 0.0, 0, time.monotonic_ns()
        for pixels, labels in self._loader:
            arrived_ns, before = time.monotonic_ns(), self.session.account
            self._optimizer.zero_grad()
            step = partial(self._loss, pixels, labels)
            if self._config.operations and len(self.times) == self._steps - 1:
                loss, recorder = record_step(self.session, self._optimizer, step)
                self._operations = recorder.finish()
            else:
                loss = step()
                loss.backward()
            self._optimizer.step()
            total, steps = total + loss.item(), steps + 1
            self._log_memory()
            done_ns = time.monotonic_ns()
            where = {"epoch_num": epoch, "step_num": steps}
            self._parts.log("load_batch_mem", asked_ns, arrived_ns - asked_ns, **where)
            self._parts.log("all_compute", arrived_ns, done_ns - arrived_ns, **where)
            self._log_parts(arrived_ns, before, self.session.account, where)
            self._parts.log("step_end", asked_ns, done_ns - asked_ns, **where)
            self.times.add(asked_ns, arrived_ns, done_ns)
            asked_ns = time.monotonic_ns()
        self.losses.append(total / steps)
        self._batches.advance_epoch()

    def _loss(self, pixels: Tensor, labels: Tensor) -> Tensor:
        loss = self._loss_of(self.network(pixels.to(self._config.device)), labels.to(self._config.device))
        self._log_memory()
        return loss

    def _log_memory(self) -> None:
        self._log.point(TENSOR_BYTES, self.session.used_bytes, at_ns=time.monotonic_ns())

    def log_other_budgets(self) -> None:
        """Log what other budgets would cost, if the options request the operations of a step."""
        config = self._config
        if config.operations:
            from iotwin.workloads.dtr.other_budgets import log_other_budgets  # imports numba

            log_other_budgets(self._operations, config.operations, config.heuristic, config.budget_bytes, self._log)

    def _log_parts(self, begin_ns: int, before: Account, after: Account, where: dict[str, Any]) -> None:
        for part, field in _PARTS.items():
            duration_ns = round((getattr(after, field) - getattr(before, field)) * 1e9)
            self._parts.log(part, begin_ns, duration_ns, **where)
            begin_ns += duration_ns


def run_job(config: DtrConfig) -> dict[str, Any]:
    """Run the job of `config` and return its result. Raises IotwinError if data is unusable or the budget cannot be kept."""
    make_folder(config.output)
    log = MlLog(sys.stdout)
    with log.interval("init"):
        job = DtrJob(config, log)
    with log.interval("run"):
        job.run()
    job.log_other_budgets()
    return {
        "workload": "dtr",
        "configuration": plain_configuration(config),
        "train_loss": job.losses,
        "steps": len(job.times),
        **job.times.summary(),
        "memory": job.session.account.document(),
        "weights_sha256": weights_sha256([job.network]),
    }
