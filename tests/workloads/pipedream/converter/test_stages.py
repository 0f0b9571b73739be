"""The stages of a split model compute what the model computes."""

import pytest
import torch
from torch import nn

from iotwin.common.errors import UsageError
from iotwin.workloads.models import build
from iotwin.workloads.pipedream.converter.layers import trace_layers
from iotwin.workloads.pipedream.converter.stages import equal_split, layers, planned_split, split
from iotwin.workloads.pipedream.plan.convert import convert
from iotwin.workloads.pipedream.plan.graph_file import parse_graph
from iotwin.workloads.pipedream.plan.report import optimize
from tests.workloads.pipedream.common import options, profile


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


def test_a_shared_parameter_belongs_to_the_first_stage_that_uses_it():
    built = build("tied")
    model = split(built.module, equal_split(built.module, 3))
    names = [[name for name, _ in stage.module.named_parameters()] for stage in model.stages]
    assert [len(each) for each in names] == [3, 4, 1]  # embedding and layer; two layers; the last layer's bias
    assert [model.consumers(name) for name in model.stages[0].outputs].count([2]) == 1
    tokens = built.make_inputs(2)[0]
    assert torch.equal(_run(model, [tokens]), built.module(tokens))
    gradient = torch.autograd.grad(_run(model, [tokens]).sum(), built.module.embedding.weight)[0]
    assert torch.equal(gradient, torch.autograd.grad(built.module(tokens).sum(), built.module.embedding.weight)[0])


class _Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.LSTM(2, 2), nn.LSTM(2, 2)])
        self.layers[1].weight_hh_l0 = self.layers[0].weight_hh_l0

    def forward(self, x):
        return self.layers[1](self.layers[0](x)[0])[0]


def test_shared_tensors_that_cannot_cross_are_refused():
    with pytest.raises(UsageError, match=r"stage 1 shares the parameter layers.1.weight_hh_l0 .*LSTM cannot receive it"):
        split(_Recurrent(), [0, 0, 1, 1])
    norm = nn.BatchNorm1d(2)
    with pytest.raises(UsageError, match=r"stages 0 and 1 share the buffer 0.running_mean"):
        split(nn.Sequential(norm, nn.Linear(2, 2), norm), [0, 0, 1])


@pytest.mark.parametrize("name", ["transformer", "gnmt", "unet"])
def test_a_model_may_be_cut_between_any_two_calls(name):
    """Sizes cross as tensors, tuples do not cross, and an attention with its own parameter is one layer."""
    built = build(name)
    built.module.eval()
    calls, tensors, expected = layers(built.module), built.make_inputs(2), None
    for cut in range(3, len(calls) - 1, 7):
        model = split(built.module, [int(index >= cut) for index in range(len(calls))])
        own = tensors[: len(model.inputs)]
        expected = built.module(*own) if expected is None else expected
        assert torch.equal(_run(model, own), expected)


def test_a_plan_gives_each_layer_its_stage():
    graph = parse_graph(_GRAPH).with_stages({"node1": 0, "node2": 0, "node3": 1, "node4": 1})
    chain = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    plan = convert(graph).plan
    assert planned_split(chain, plan) == [0, 1, 1]
    assert planned_split(nn.Sequential(chain[0], nn.ReLU(), chain[2]), plan) == [0, 0, 1]  # layers with parameters agree
    assert planned_split(nn.Sequential(chain[0], chain[1], nn.Bilinear(2, 2, 2)), plan) is None
    assert planned_split(nn.Sequential(chain[0], chain[1]), plan) is None


_GRAPH = """\
node1 -- Input -- forward_compute_time=0.0, backward_compute_time=0.0, activation_size=1.0, parameter_size=0.0
node2 -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=1.0
node3 -- Tanh() -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=0.0
node4 -- Linear(2, 2) -- forward_compute_time=1.0, backward_compute_time=1.0, activation_size=1.0, parameter_size=1.0
\tnode1 -- node2
\tnode2 -- node3
\tnode3 -- node4"""


@pytest.mark.parametrize("name", ["vgg16", "alexnet", "resnet50"])
def test_published_profiles_give_plans_for_the_models_of_the_same_layers(name):
    plan = optimize(profile(name), options([4], [1e9])).plan
    with torch.device("meta"):
        model = build(name, "paper").module
    stages = planned_split(model, plan)
    assert len(split(model, stages).stages) == len(plan.stages)
    weighted = [kind in ("Conv2d", "Linear", "BatchNorm2d") for kind in plan.stages[0].kinds].count(True)
    first = [name for name, stage in zip(layers(model), stages, strict=True) if stage == 0]
    traced = dict(trace_layers(model).named_modules())
    calls = {node.name: traced[node.target] for node in trace_layers(model).graph.nodes if node.op == "call_module"}
    assert sum(any(True for _ in calls[name].parameters()) for name in first if name in calls) == weighted


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
