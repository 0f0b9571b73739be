"""Updates out of place equal torch's in place, and a version lives as long as a minibatch uses it."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call

from iotwin.workloads.models import build
from iotwin.workloads.pipedream.runtime.engine import StageRank, training_of
from iotwin.workloads.pipedream.runtime.weights import SgdVersions, WeightVersions
from iotwin.workloads.policies.pipeline import PipelinePlan, Stage


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SgdVersions(0.1, 0.0, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (SgdVersions(0.1, 0.9, 1e-2), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-2)),
    ],
    ids=["plain", "momentum"],
)
def test_updates_equal_torchs_bit_for_bit(ours, theirs):
    torch.manual_seed(0)
    weight = torch.randn(7, 5)
    live = nn.Parameter(weight.clone())
    optimizer = theirs([live])
    for _ in range(6):
        gradient = torch.randn(7, 5)
        live.grad = gradient.clone()
        optimizer.step()
        before = weight.clone()
        updated = ours.next_value("weight", weight, gradient)
        assert torch.equal(weight, before)
        weight = updated
        assert torch.equal(weight, live.detach())


@pytest.mark.parametrize(("kept", "equal"), [(1, (False, False)), (2, (True, False)), (3, (True, True))])
def test_stashed_versions_give_the_gradients_of_the_original_stashing_test(kept, equal):
    """Three backward passes of the same input, with the oldest of `kept` versions each, as PipeDream's own unit test."""
    torch.manual_seed(0)
    versions = WeightVersions(nn.Linear(3, 3), SgdVersions())
    found = []
    for step in range(3):
        weights = versions.use(max(0, step - (kept - 1)))
        inputs = torch.ones(1, 3, requires_grad=True)
        output = functional_call(nn.Linear(3, 3), weights, (inputs,)).square().sum()
        gradient, *of_weights = torch.autograd.grad(output, [inputs, *weights.values()])
        found.append(gradient)
        versions.update(of_weights)
    assert (torch.equal(found[0], found[1]), torch.equal(found[0], found[2])) == equal


def test_a_version_is_freed_with_its_last_use():
    module = nn.Linear(3, 3)
    versions = WeightVersions(module, SgdVersions())
    held = versions.use(0)
    first = weakref.ref(held["weight"])
    versions.update([torch.ones(3, 3), torch.ones(3)])
    versions.use(1)
    gc.collect()
    assert first() is held["weight"]
    del held
    gc.collect()
    assert first() is None


def test_the_module_itself_keeps_no_weights():
    module = nn.Linear(3, 3)
    WeightVersions(module, SgdVersions())
    assert module.weight.is_meta


@pytest.mark.parametrize(
    ("schedule", "depth", "most"),
    [("1f1b", 0, 1), ("1f1b", 1, 2), ("1f1b", 3, 4), ("none", 2, 1), ("gpipe", 2, 1), ("flush", 2, 1), ("2bw", 1, 2)],
)
def test_as_many_versions_are_alive_as_the_plan_names(schedule, depth, most):
    """Counted at every update, when the next version is made. A pipeline of one stage needs no other process."""
    plan = PipelinePlan((Stage(0, (0,), 1.0, 1.0),), schedule, {0: depth})
    torch.manual_seed(0)
    optimizer = _Counting()
    rank = StageRank(training_of(build("mlp"), plan, [0]), 0, optimizer)
    optimizer.first = rank.weights.latest()["0.weight"]
    built = build("mlp")

    def load(minibatch):
        tensors = built.make_inputs(4)
        return tensors[:1], tensors[1:]

    rank.train(load, 12)
    assert max(optimizer.alive) == most


class _Counting(SgdVersions):
    """Counts the values of one weight that are alive after each update."""

    def __init__(self):
        super().__init__()
        self.seen, self.alive = [], []

    @property
    def first(self):
        return self.seen[0]()

    @first.setter
    def first(self, weight):
        self.seen.append(weakref.ref(weight))

    def next_value(self, name, weight, gradient, out=None):
        value = super().next_value(name, weight, gradient, out)
        if name == "0.weight":
            self.seen.append(weakref.ref(value))
            self.alive.append(len({id(each()) for each in self.seen if each() is not None}))
        return value
