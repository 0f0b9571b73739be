"""PyTorch models by name: `build(name, preset)` returns a module, a function that makes the module's inputs, and a loss."""

from typing import TYPE_CHECKING

from iotwin.common.errors import UsageError, nearest

if TYPE_CHECKING:
    from iotwin.workloads.models.built import Built

PRESETS = ("paper", "tiny")  # the published size; a size that a CPU trains in milliseconds
IMAGE_SIDE = {"paper": 224, "tiny": 32}  # height and width of an image, in pixels
_CLASSES = {"paper": 1000, "tiny": 10}
# Networks for the images of CIFAR-10, of 32 by 32 pixels and 10 classes.
_OF_CIFAR = ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110", "resnet1202", "densenet100")
# Published height and width of an image, and published number of classes, of networks that differ from the others.
_PUBLISHED_SIDE = {**dict.fromkeys(_OF_CIFAR, 32), "inception_v3": 299, "inception_v4": 299}
_PUBLISHED_CLASSES = {**dict.fromkeys(_OF_CIFAR, 10), "inception_v4": 1001}
IMAGE_CLASSIFIERS = (
    "resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "resnext101", "vgg16", "alexnet", "mobilenet_v2",
    "densenet121", "densenet161", "densenet169", "densenet201", "inception_v3", "inception_v4", *_OF_CIFAR,
)  # fmt: skip
# Second names of models: short ones, and those in the experiments of DTR's authors.
ALIASES = {
    "resnet": "resnet18", "densenet": "densenet121", "vgg": "vgg16",
    **{f"tv_resnet{layers}": f"resnet{layers}" for layers in (18, 34, 50, 101, 152)},
    **{f"tv_densenet{layers}": f"densenet{layers}" for layers in (121, 161, 169, 201)},
    "inceptionv3": "inception_v3", "inceptionv4": "inception_v4", "unroll_gan": "gan",
}  # fmt: skip
# The default batch size of each model.
MODELS = {
    **dict.fromkeys(IMAGE_CLASSIFIERS, 4), "mlp": 32, "mlp4": 8, "skip4": 8, "tied": 8, "unet": 2, "lstm": 8, "gru": 8,
    "lstm_encoder": 4, "gru_encoder": 4, "treelstm": 8, "treelstm_old": 8, "transformer": 4, "transformer_encoder": 4, "gpt": 4,
    "gnmt": 4,
    "gan": 8,
}  # fmt: skip
MODELS |= {alias: MODELS[name] for alias, name in ALIASES.items()}
Sizes = dict[str, float]
# The sizes that may follow a model's name, as in `unet:height=64,width=64`: in the preset tiny, and in the preset paper.
_SIZES: dict[str, tuple[Sizes, Sizes]] = {
    "unet": ({"height": 32, "width": 32}, {"height": 416, "width": 608}),
    **dict.fromkeys(("lstm", "gru"), ({"in_dim": 16, "mem_dim": 32, "length": 24}, {"in_dim": 10, "mem_dim": 300, "length": 50})),
    **dict.fromkeys(
        ("lstm_encoder", "gru_encoder", "transformer_encoder"),
        ({"words": 50, "width": 16, "length": 12}, {"words": 33278, "width": 200, "length": 35}),
    ),
    "treelstm": ({"in_dim": 16, "mem_dim": 16, "dep": 4}, {"in_dim": 100, "mem_dim": 300, "dep": 6}),
    "treelstm_old": (
        {"words": 50, "in_dim": 16, "mem_dim": 16, "hidden_dim": 8, "dep": 3},
        {"words": 2405, "in_dim": 300, "mem_dim": 150, "hidden_dim": 50, "dep": 4},
    ),
    "transformer": (
        {"input_seq_length": 16, "num_feature": 32},
        {"input_seq_length": 10, "target_seq_length": 20, "num_feature": 512},
    ),
    "gpt": (
        {"words": 50, "width": 32, "length": 16, "layers": 4},
        {"words": 50257, "width": 768, "length": 1024, "layers": 12},
    ),
    "gan": (
        {"g_inp": 16, "g_hid": 32, "g_out": 2, "d_hid": 32, "d_out": 1, "unrolled_steps": 5, "std": 0.02, "radius": 2},
        {"g_inp": 256, "g_hid": 512, "g_out": 2, "d_hid": 512, "d_out": 1, "unrolled_steps": 10, "std": 0.02, "radius": 2},
    ),
}
_REAL_SIZES = ("std", "radius")  # the others are whole numbers of at least 1


def build(name: str, preset: str = "tiny", classes: int | None = None) -> "Built":
    """Return the model `name`, which may be followed by sizes: ``unet:height=64,width=64``.

    `classes` is for image classifiers only, by default the published number (paper) or 10 (tiny). Raises UsageError if the name,
    a size or the preset is unknown, or if the model has no published size for the preset paper.
    """
    if preset not in PRESETS:
        raise UsageError(f"unknown preset '{preset}'{nearest(preset, list(PRESETS))}; known: {', '.join(PRESETS)}")
    name, sizes = _named(name, preset)
    if name in IMAGE_CLASSIFIERS:
        from iotwin.workloads.models.image_classifiers import image_classifier

        published = _PUBLISHED_CLASSES.get(name, _CLASSES[preset]) if preset == "paper" else _CLASSES[preset]
        return image_classifier(name, preset, classes or published, int(sizes["height"]), int(sizes["width"]))
    if name == "gnmt":
        from iotwin.workloads.models.gnmt import gnmt

        return gnmt(preset)
    from iotwin.workloads.models import gan, recurrent, sequences, transformers, unet

    if name in _SIZES:
        sized = {
            "unet": unet.unet, "lstm": recurrent.lstm, "gru": recurrent.gru, "lstm_encoder": recurrent.lstm_encoder,
            "gru_encoder": recurrent.gru_encoder, "treelstm": recurrent.treelstm, "treelstm_old": recurrent.treelstm_old,
            "transformer": transformers.transformer, "transformer_encoder": transformers.transformer_encoder,
            "gpt": transformers.gpt, "gan": gan.gan,
        }  # fmt: skip
        return sized[name](preset, sizes)
    if preset == "paper":
        raise UsageError(f"the model {name} has no published size; use the preset tiny")
    return {"mlp": sequences.mlp, "mlp4": sequences.mlp4, "skip4": sequences.skip4, "tied": sequences.tied}[name]()


def default_batch(name: str) -> int:
    """Return the default batch size of the model `name`, which may be followed by sizes. Raises UsageError if it is unknown."""
    return MODELS[_known(name.partition(":")[0])]


def sizes_of(name: str, preset: str) -> Sizes:
    """Return the sizes, and their defaults, that may follow the name of the model `name`. Raises UsageError if it is unknown."""
    name = ALIASES.get(_known(name), name)
    if name in IMAGE_CLASSIFIERS:
        side = IMAGE_SIDE[preset] if preset == "tiny" else _PUBLISHED_SIDE.get(name, IMAGE_SIDE[preset])
        return {"height": side, "width": side}
    return dict(_SIZES[name][preset == "paper"]) if name in _SIZES else {}


def _known(name: str) -> str:
    if name not in MODELS:
        raise UsageError(f"unknown model '{name}'{nearest(name, list(MODELS))}; known: {', '.join(MODELS)}")
    return name


def _named(text: str, preset: str) -> tuple[str, Sizes]:
    """Return the name of a model without alias, and its sizes: those in `text` ("NAME:KEY=VALUE,..."), else the preset's."""
    name, colon, given = text.partition(":")
    sizes = sizes_of(name, preset)
    for word in given.split(",") if colon else []:
        key, _, value = word.partition("=")
        if key not in sizes:
            known = f"known: {', '.join(sizes)}" if sizes else "it has none"
            raise UsageError(f"{name} has no size '{key}' in the preset {preset}{nearest(key, list(sizes))}; {known}")
        try:
            sizes[key] = float(value) if key in _REAL_SIZES else int(value)
        except ValueError:
            raise UsageError(f"{name}: {key} must be a number (got '{value}')") from None
        if not sizes[key] >= (0 if key in _REAL_SIZES else 1):
            raise UsageError(f"{name}: {key} must be at least {0 if key in _REAL_SIZES else 1} (got {value})")
    return ALIASES.get(name, name), sizes
