"""The first difference of two recorded steps is the fault that was put into one of them."""

import random
import sys

import numpy as np
import pytest
import torch
from torch import nn

from iotwin.workloads.detrain.verify.events import StepEvent, first_differing_event, read_events
from iotwin.workloads.detrain.verify.step_record import StepRecord
from tests.workloads.detrain.saved_script import without_modules

pytestmark = pytest.mark.torch
STEP = 5
NUDGE = 1 + 1e-3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.fault = None

    def forward(self, x):
        hidden = self.norm(self.first(x))
        if self.fault == "rng in the model":
            torch.rand(2)
        if self.fault == "loss in the model":
            hidden = hidden * NUDGE
        return self.second(nn.functional.dropout(hidden, 0.3))


class Job:
    """A small training job with all that a record names."""

    def __init__(self):
        random.seed(3), np.random.seed(3), torch.manual_seed(3)
        self.net = Net()
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.1, foreach=True)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        self.draws = torch.Generator().manual_seed(3)
        self.batch = torch.randn(6, 4), torch.randint(0, 3, (6,))
        self.indices = [2, 0, 1]
        self.train(self.batch, None)

    def train(self, batch, fault):
        self.net.fault = fault
        x, labels = batch
        noise = torch.rand(x.shape, generator=self.draws)
        loss = nn.functional.cross_entropy(self.net(x + noise), labels)
        if fault == "loss":
            loss = loss * NUDGE
        if fault == "gradient in the backward pass":
            self.net.first.weight.register_hook(lambda gradient: gradient * NUDGE)
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        with torch.no_grad():
            if fault == "gradient":
                self.net.second.bias.grad.mul_(NUDGE)
            nn.utils.clip_grad_norm_(self.net.parameters(), 1.0)
            if fault == "rng after the loss":
                torch.rand(2)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        with torch.no_grad():
            if fault == "parameter":
                self.net.first.weight.mul_(NUDGE)
            if fault == "optimizer":
                self.optimizer.state[self.net.first.weight]["exp_avg"].mul_(NUDGE)
        self.optimizer.zero_grad()
        self.schedule.step()

    def disturb(self, fault):
        """Put a fault in the state before the step."""
        with torch.no_grad():
            disturb = {
                "rng of python": random.random,
                "rng of numpy": np.random.rand,
                "rng of torch": lambda: torch.rand(1),
                "own rng": lambda: torch.rand(1, generator=self.draws),
                "indices": self.indices.reverse,
                "input": lambda: self.batch[0].mul_(NUDGE),
                "labels": lambda: self.batch[1].add_(1).remainder_(3),
                "parameter before": lambda: self.net.second.weight.mul_(NUDGE),
                "buffer before": lambda: self.net.norm.running_mean.add_(1),
                "optimizer before": lambda: self.optimizer.state[self.net.first.bias]["exp_avg_sq"].mul_(NUDGE),
                "learning rate": lambda: self.optimizer.param_groups[0].update(lr=0.2),
                "schedule": lambda: setattr(self.schedule, "last_epoch", 7),
                "scaler": lambda: self.scaler.load_state_dict({**self.scaler.state_dict(), "scale": 2.0}),
                "lost state": lambda: self.optimizer.state.pop(self.net.second.bias),
            }.get(fault)
        if disturb is not None:
            disturb()


def recorded(path, fault=None, fetches_in_body=False):
    """Return the events of the second step of a job."""
    job = Job()
    record = StepRecord(path)
    with torch.no_grad():
        if fault is not None:
            job.disturb(fault)
    with without_modules():
        if fetches_in_body:
            record.begin(sys._getframe(), None, None)
            record.inputs(job.indices, job.batch)
        else:
            record.before_fetch()
            record.begin(sys._getframe(), job.indices, job.batch)
    job.train(job.batch, fault)
    record.end()
    return read_events(path)


FAULTS = {
    "rng of python": ("rng", "python", ""),
    "rng of numpy": ("rng", "numpy", ""),
    "rng of torch": ("rng", "torch", ""),
    "own rng": ("rng", "recorded().job.draws", ""),
    "rng in the model": ("rng", "recorded().job.net", "aten.rand.default"),
    "rng after the loss": ("rng", "", "aten.rand.default"),
    "indices": ("indices", "", ""),
    "input": ("input", "0", ""),
    "labels": ("input", "1", ""),
    "parameter before": ("parameter", "recorded().job.net.second.weight", ""),
    "buffer before": ("parameter", "recorded().job.net.norm.running_mean", ""),
    "optimizer before": ("optimizer", "recorded().job.optimizer.state.1.exp_avg_sq", ""),
    "lost state": ("optimizer", "recorded().job.optimizer.state.5.step", ""),
    "learning rate": ("optimizer", "recorded().job.optimizer.param_groups.0.lr", ""),
    "schedule": ("optimizer", "recorded().job.schedule.last_epoch", ""),
    "scaler": ("optimizer", "recorded().job.scaler.scale", ""),
    "loss": ("loss", "", "aten.mul.Tensor"),
    "loss in the model": ("loss", "recorded().job.net", "aten.mul.Tensor"),
    "gradient": ("gradient", "recorded().job.net.second.bias", "aten.mul_.Tensor"),
    "gradient in the backward pass": ("gradient", "recorded().job.net.first.weight", "aten.mul.Tensor"),
    "parameter": ("parameter", "recorded().job.net.first.weight", "aten.mul_.Tensor"),
    "optimizer": ("optimizer", "recorded().job.optimizer.state.0.exp_avg", "aten.mul_.Tensor"),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return recorded(tmp_path_factory.mktemp("reference") / "record")


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_named(tmp_path, reference, fault):
    found = first_differing_event(STEP, reference, recorded(tmp_path / "record", fault))
    assert found is not None and found.step == STEP
    assert (found.what, found.name, found.op) == FAULTS[fault]


def test_equal_steps_have_no_difference(tmp_path, reference):
    again = recorded(tmp_path / "record")
    assert first_differing_event(STEP, reference, again) is None
    assert [event.what for event in again[:3]] == ["rng"] * 3 and again[-1].what == "rng"
    kinds = {event.what for event in again}
    assert kinds == {"rng", "parameter", "optimizer", "indices", "input", "loss", "gradient"}


def test_a_batch_that_the_body_fetches_is_recorded_too(tmp_path):
    reference = recorded(tmp_path / "reference", fetches_in_body=True)
    for fault in ("rng of torch", "input", "gradient"):
        found = first_differing_event(STEP, reference, recorded(tmp_path / "record", fault, fetches_in_body=True))
        assert found is not None and (found.what, found.name, found.op) == FAULTS[fault]


def test_recording_changes_nothing_and_ends(tmp_path):
    def trained(records):
        job = Job()
        if records:
            record = StepRecord(tmp_path / "record")
            with without_modules():
                record.begin(sys._getframe(), job.indices, job.batch)
        job.train(job.batch, None)
        if records:
            record.end()
        after = (tmp_path / "record").read_bytes() if records else None
        job.train(job.batch, None)
        assert after is None or after == (tmp_path / "record").read_bytes()
        return [*job.net.state_dict().values(), torch.get_rng_state()]

    backward = torch.autograd.backward
    assert all(map(torch.equal, trained(records=True), trained(records=False)))
    assert torch.autograd.backward is backward


def test_events_of_one_run_alone():
    constant = StepEvent("loss", "", "aten.full.default", "a")
    mul, other = StepEvent("loss", "", "aten.mul.Tensor", "b"), StepEvent("loss", "net", "aten.mul.Tensor", "c")
    draw = StepEvent("loss", "net", "aten.rand.default", "d", True)
    state = StepEvent("optimizer", "state.0", "", "e")
    assert first_differing_event(STEP, [mul], [constant, mul]) is None
    assert (
        first_differing_event(STEP, [mul, other], [constant, mul, StepEvent("loss", "net", "aten.mul.Tensor", "x")]).name == "net"
    )
    before, after = StepEvent("rng", "torch", "", "f"), StepEvent("rng", "torch", "", "g")
    assert first_differing_event(STEP, [mul, before], [mul, draw, after]).op == draw.op
    assert first_differing_event(STEP, [mul, before], [mul, draw, before]) is None
    assert first_differing_event(STEP, [state, mul], [mul]).name == "state.0"
