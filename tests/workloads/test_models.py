"""The zoo: every model takes a step at its tiny size, and published networks have the published numbers of parameters."""

import pytest

from iotwin.common.errors import UsageError
from iotwin.workloads.models import ALIASES, IMAGE_CLASSIFIERS, MODELS, build, default_batch, sizes_of
from tests.workloads.pipedream.common import profile

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


# Deeper networks, which are equal to a shallower one at the preset tiny.
DEEPER = {f"resnet{layers}" for layers in (32, 34, 44, 56, 101, 110, 152, 1202)} | {
    f"densenet{layers}" for layers in (100, 161, 169, 201)
}
DISTINCT = [name for name in MODELS if name not in ALIASES.keys() | DEEPER]


def parameters(name):
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(name, "paper").module.parameters())


@pytest.mark.parametrize("name", DISTINCT)
def test_every_tiny_model_takes_a_step(name):
    module, make_inputs, loss = build(name)
    loss(module, *make_inputs(2)).backward()
    named = dict(module.named_parameters())
    without = {key for key, parameter in named.items() if parameter.grad is None}
    assert {key.split(".")[0] for key in without} <= ({"discriminator"} if name == "gan" else set())
    assert any(bool(parameter.grad.any()) for parameter in named.values() if parameter.grad is not None)


@pytest.mark.parametrize("name", [name for name in DISTINCT if name in IMAGE_CLASSIFIERS])
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
        ("resnet34", 21_797_672),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
        ("densenet161", 28_681_000),
        ("densenet169", 14_149_480),
        ("densenet201", 20_013_928),
        # counted in the models of DTR's authors
        ("resnet20", 269_722),
        ("resnet32", 464_154),
        ("resnet44", 658_586),
        ("resnet56", 853_018),
        ("resnet110", 1_727_962),
        ("resnet1202", 19_421_274),
        ("densenet100", 769_162),
        ("inceptionv4", 42_681_353),
        ("unet", 17_267_393),
        ("transformer", 63_054_848),
        ("lstm_encoder", 13_987_678),
        ("gru_encoder", 13_826_878),
        ("transformer_encoder", 13_828_478),
        ("gpt", 124_439_808),  # GPT-2 small
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
        ("unet:hight=4", "tiny", "unet has no size 'hight' in the preset tiny (did you mean 'height'?); known: height, width"),
        ("mlp:width=4", "tiny", "mlp has no size 'width' in the preset tiny; it has none"),
        ("unet:height=x", "tiny", "unet: height must be a number (got 'x')"),
        ("unet:height=0", "tiny", "unet: height must be at least 1 (got 0)"),
        ("gan:std=-1", "tiny", "gan: std must be at least 0 (got -1)"),
        ("gpt:width=30", "tiny", "gpt: width must be a multiple of 8 (got 30)"),
        ("transformer:num_feature=30", "tiny", "transformer: num_feature must be a multiple of 4 (got 30)"),
    ],
)
def test_what_cannot_be_built_is_one_line(name, preset, message):
    with pytest.raises(UsageError) as raised:
        build(name, preset)
    assert str(raised.value).startswith(message)


def test_gpt_sees_earlier_words_only():
    module, make_inputs, _ = build("gpt:length=6")
    words, following = make_inputs(1)
    changed = words.clone()
    changed[0, 3] = (words[0, 3] + 1) % 50
    with torch.no_grad():
        same = (module.eval()(words) == module(changed)).all(-1)[0].tolist()
    assert same == [True] * 3 + [False] * 3 and torch.equal(words[0, 1:], following[0, :-1])


def test_sizes_after_the_name_replace_the_defaults():
    module, make_inputs, _ = build("unet:height=48,width=64")
    assert module(make_inputs(1)[0]).shape == (1, 1, 48, 64)
    assert build("lstm:length=5").make_inputs(3)[0].shape == (5, 3, 16)
    assert (sizes_of("inceptionv4", "paper"), sizes_of("mlp", "tiny")) == ({"height": 299, "width": 299}, {})
    assert (default_batch("unet:height=48"), default_batch("unroll_gan")) == (2, 8)


def test_a_tree_has_as_many_levels_as_it_is_built_for():
    assert build("treelstm:dep=2,in_dim=3", "paper").make_inputs(4)[0].shape == (7, 4, 3)


def test_deeper_networks_are_equal_at_the_preset_tiny():
    """So that one of them is enough for a test."""

    def shapes(name):
        return [parameter.shape for parameter in build(name).module.parameters()]

    assert all(shapes(name) == shapes("resnet18") for name in ("resnet34",))
    assert all(shapes(name) == shapes("resnet20") for name in ("resnet32", "resnet1202"))
    assert all(shapes(name) == shapes("resnet50") for name in ("resnet101", "resnet152"))
    assert all(shapes(name) == shapes("densenet121") for name in DEEPER if name.startswith("densenet"))
