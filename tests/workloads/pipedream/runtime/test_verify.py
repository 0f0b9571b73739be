"""Ranks that train a pipeline end with the weights of a single process that follows the formula of stale weights."""

import json
from dataclasses import replace

import pytest
import torch

from iotwin.common.errors import UsageError
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.layers import node_ids, trace_layers
from iotwin.workloads.pipedream.runtime.engine import seed_pass
from iotwin.workloads.pipedream.runtime.staleness import train_alone
from iotwin.workloads.pipedream.runtime.verify import Verification, verify

forked = pytest.mark.usefixtures("forked_programs")  # in all tests but one of two ranks


@pytest.fixture
def conf(tmp_path):
    def write(*replicas: int) -> str:
        first, ranks = 0, {}
        for stage, count in enumerate(replicas):
            ranks[str(stage)] = list(range(first, first + count))
            first += count
        path = tmp_path / "conf.json"
        path.write_text(json.dumps({"module_to_stage_map": list(range(len(replicas))), "stage_to_rank_map": ranks}))
        return str(path)

    return write


@forked
@pytest.mark.parametrize(
    ("replicas", "options"),
    [
        ((1, 1, 1, 1), {}),
        ((1, 1, 1, 1), {"module": "skip4", "vertical_sync": True}),
        ((1, 1, 1), {"module": "skip4", "schedule": "gpipe", "minibatches": 13}),
        ((1, 1), {"module": "resnet18", "recompute": True, "minibatches": 6}),
        ((1, 1), {"schedule": "2bw"}),
        ((1, 1, 1), {"module": "tied"}),
        ((1, 1), {"module": "gnmt", "minibatches": 4}),
    ],
)
def test_weights_are_equal_bit_for_bit(conf, replicas, options):
    document = verify(Verification(conf(*replicas), **{"minibatches": 12, **options}))
    assert document["max_difference"] == 0
    assert document["equal"]


@forked
def test_a_plan_s_layers_are_trained_even_if_a_cut_is_within_a_layer(tmp_path):
    """Both cuts are within a transformer's layers, where sizes and a skip tensor cross."""
    model = build("transformer").module
    traced = trace_layers(model)
    ids = list(node_ids(traced).values())
    nodes = [ids[:40], ids[40:90], ids[90:]]
    times = {"forward_s": 1, "backward_s": 2}
    stages = [{"stage": k, "ranks": [k], "nodes": own, **times} for k, own in enumerate(nodes)]
    path = tmp_path / "plan.json"
    path.write_text(json.dumps({"version": 1, "stages": stages}))
    document = verify(Verification(str(path), "transformer", 6))
    assert document["equal"] and document["max_difference"] == 0 and document["split"] == "plan"
    other = Verification(str(path), "mlp4").training()
    assert [len(list(stage.module.parameters())) for stage in other.model.stages] == [4, 2, 2]  # an equal split


@forked
@pytest.mark.parametrize(("replicas", "options"), [((2, 1), {}), ((3, 1), {"schedule": "gpipe"})])
def test_weights_are_equal_to_a_millionth_with_replicas_that_have_unequal_shares(conf, replicas, options):
    document = verify(Verification(conf(*replicas), minibatches=11, **options))
    assert document["max_difference"] <= 1e-6
    assert document["equal"]


def test_versions_follow_the_papers_formula(conf):
    document = verify(Verification(conf(1, 1), minibatches=5))
    assert document["versions_used"] == {"0": [0, 0, 1, 2, 3], "1": [0, 1, 2, 3, 4]}


def test_other_versions_give_other_weights(conf):
    """The negative control: the comparison must notice a pipeline that waits for each update."""
    options = Verification(conf(1, 1), minibatches=6)
    stale, waiting = options, replace(options, schedule="none")
    first, second = (_alone(each)[0] for each in (stale, waiting))
    assert any(not torch.equal(first[0][name], second[0][name]) for name in first[0])


def test_one_stage_is_plain_training(conf):
    options = Verification(conf(1), module="mlp", minibatches=7)
    module = build_seeded("mlp")
    optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=1e-4)
    _train_plainly(options, module, optimizer, 1)
    assert _equal(_alone(options), module)


def test_gpipe_is_gradient_accumulation(conf):
    options = Verification(conf(1, 1), module="mlp", schedule="gpipe", minibatches=8)
    module = build_seeded("mlp")
    optimizer = torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=1e-4)
    _train_plainly(options, module, optimizer, 2)
    assert _equal(_alone(options), module)


def test_vertical_sync_with_unequal_replicas_is_refused(conf):
    with pytest.raises(UsageError, match="as many replicas in each stage"):
        verify(Verification(conf(2, 1), vertical_sync=True))


def build_seeded(name):
    torch.manual_seed(0)
    return build(name).module


def _alone(options):
    training = options.training()

    def optimizer(parameters, stage):
        return torch.optim.SGD(list(parameters), 0.05, 0.9, weight_decay=1e-4)

    return train_alone(training, options.load(training), options.minibatches, optimizer)


def _train_plainly(options, module, optimizer, accumulated):
    training = options.training()
    load = options.load(training)
    for minibatch in range(options.minibatches):
        inputs, targets = load(minibatch)
        seed_pass(0, 0, minibatch)
        training.criterion(module(*inputs), *targets).backward()
        if (minibatch + 1) % accumulated == 0:
            for parameter in module.parameters():
                parameter.grad /= accumulated
            optimizer.step()
            optimizer.zero_grad()


def _equal(alone, module):
    weights = [value for stage in alone[0] for value in stage.values()]
    plain = list(module.parameters())
    return len(weights) == len(plain) and all(torch.equal(a, b) for a, b in zip(weights, plain, strict=True))
