"""The stages of a split model compute what the model computes."""

import pytest
import torch
from torch import nn

from iotwin.common.errors import UsageError
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.runtime.stages import equal_split, layers, split


def _run(model, tensors):
    known = dict(zip(model.inputs, tensors, strict=True))
    for stage in model.stages:
        result = stage.module(*(known[name] for name in stage.inputs))
        known |= dict(zip(stage.outputs, result if isinstance(result, tuple) else (result,), strict=True))
    return known[model.output]


@pytest.mark.parametrize("name", ["mlp4", "skip4", "resnet18", "densenet121"])
@pytest.mark.parametrize("stages", [1, 3, 4])
def test_the_stages_in_turn_give_the_models_output(name, stages):
    built = build(name)
    built.module.eval()
    images = built.make_inputs(2)[0]
    model = split(built.module, equal_split(built.module, stages))
    assert len(model.stages) == stages
    assert torch.equal(_run(model, [images]), built.module(images))


def test_a_tensor_goes_to_the_stage_that_needs_it_and_to_none_between():
    model = split(build("skip4").module, equal_split(build("skip4").module, 4))
    first = model.stages[0].outputs[0]
    assert model.producer(first) == 0
    assert model.consumers(first) == [1, 2]  # stage 2 adds it to its own result
    assert model.consumers(model.inputs[0]) == []


def test_equal_splits_have_equally_many_layers_with_parameters():
    chain = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(2, 2), nn.ReLU())))
    assert equal_split(chain, 3) == [0] * 4 + [1] * 4 + [2] * 4


def test_more_stages_than_layers_are_refused():
    with pytest.raises(UsageError, match="4 layers with parameters, too few for 5"):
        equal_split(build("mlp4").module, 5)


def test_stages_that_share_a_parameter_are_refused():
    chain = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    chain[1].weight = chain[0].weight
    with pytest.raises(UsageError, match=r"stages 0 and 1 share the parameter"):
        split(chain, [0, 1])


def test_a_stage_that_reads_a_later_one_is_refused():
    chain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert len(layers(chain)) == 2
    with pytest.raises(UsageError, match=r"reads .* of stage 1; a stage reads earlier stages only"):
        split(chain, [1, 0])


def test_a_model_whose_flow_depends_on_data_is_refused():
    class Loop(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(UsageError, match="control flow depends on data"):
        split(Loop(), [0])
