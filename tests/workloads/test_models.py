"""The zoo: every model takes a step at its tiny size, and published networks have the published numbers of parameters."""

import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.models import IMAGE_CLASSIFIERS, MODELS, build
from tests.workloads.pipedream.common import profile

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def parameters(name):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(name, "paper").module.parameters())


@pytest.mark.parametrize("name", MODELS)
def test_every_tiny_model_takes_a_step(name):
    module, make_inputs, loss = build(name)
    loss(module, *make_inputs(2)).backward()
    named = dict(module.named_parameters())
    without = {key for key, parameter in named.items() if parameter.grad is None}
    assert {key.split(".")[0] for key in without} <= ({"discriminator"} if name == "gan" else set())
    assert any(bool(parameter.grad.any()) for parameter in named.values() if parameter.grad is not None)


@pytest.mark.parametrize("name", IMAGE_CLASSIFIERS)
def test_classifiers_distinguish_as_many_classes_as_they_are_built_for(name):
    module, make_inputs, _ = build(name, "tiny", 7)
    assert module(make_inputs(2)[0]).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "published"),
    [
        ("resnet18", 11_689_512),
        ("resnet50", 25_557_032),
        ("resnext101", 88_791_336),
        ("vgg16", 138_357_544),
        ("alexnet", 61_100_840),
        ("mobilenet_v2", 3_504_872),
        ("densenet121", 7_978_856),
        ("inception_v3", 23_834_568),  # the auxiliary classifier, of 3 326 696 more, left out
    ],
)
def test_networks_have_the_published_numbers_of_parameters(name, published):
    assert parameters(name) == published


@pytest.mark.parametrize("name", ["gnmt", "alexnet", "resnet50"])
def test_networks_have_the_parameters_of_the_profile_that_pipedream_published(name):
    assert 4 * parameters(name) == sum(node.parameter_bytes for node in profile(name).nodes)


@pytest.mark.parametrize(
    ("name", "preset", "message"),
    [
        ("resnett", "tiny", "unknown model 'resnett' (did you mean 'resnet'?)"),
        ("resnet", "papers", "unknown preset 'papers' (did you mean 'paper'?)"),
        ("mlp", "paper", "the model mlp has no published size; use the preset tiny"),
    ],
)
def test_what_cannot_be_built_is_one_line(name, preset, message):
    with pytest.raises(UsageError) as raised:
        build(name, preset)
    assert str(raised.value).startswith(message)
