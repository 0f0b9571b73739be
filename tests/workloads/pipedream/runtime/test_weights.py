"""Updates out of place equal torch's in place, and a version lives as long as a minibatch uses it."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.func import functional_call

from iotwin.workloads.pipedream.runtime.weights import AdamVersions, SgdVersions, WeightVersions


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SgdVersions(0.1, 0.0, 0.0), lambda p: torch.optim.SGD(p, 0.1)),
        (SgdVersions(0.1, 0.9, 1e-2), lambda p: torch.optim.SGD(p, 0.1, 0.9, weight_decay=1e-2)),
        (AdamVersions(0.01), lambda p: torch.optim.Adam(p, 0.01)),
    ],
    ids=["plain", "momentum", "adam"],
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
