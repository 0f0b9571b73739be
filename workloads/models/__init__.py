"""PyTorch models by name: `build(name, preset)` returns a module, a function that makes the module's inputs, and a loss."""

from typing import TYPE_CHECKING

from iotwin.common.errors import UsageError, nearest

if TYPE_CHECKING:
    from iotwin.workloads.models.built import Built

PRESETS = ("paper", "tiny")  # the published size; a size that a CPU trains in milliseconds
IMAGE_SIDE = {"paper": 224, "tiny": 32}  # height and width of an image, in pixels
_CLASSES = {"paper": 1000, "tiny": 10}
IMAGE_CLASSIFIERS = (
    "resnet18", "resnet50", "resnext101", "vgg16", "alexnet", "mobilenet_v2", "densenet121", "inception_v3",
)  # fmt: skip
_SHORT_NAMES = {"resnet": "resnet18", "densenet": "densenet121", "vgg": "vgg16"}
# The default batch size of each model.
MODELS = {
    **dict.fromkeys(IMAGE_CLASSIFIERS, 4), **dict.fromkeys(_SHORT_NAMES, 4),
    "mlp": 32, "mlp4": 8, "skip4": 8, "tied": 8, "unet": 2, "lstm": 8, "treelstm": 1, "transformer": 4, "gnmt": 4, "gan": 8,
}  # fmt: skip


def build(name: str, preset: str = "tiny", classes: int | None = None) -> "Built":
    """Return the model `name`. `classes` is for image classifiers only, by default 1000 (paper) or 10 (tiny).

    Raises UsageError if the name or preset is unknown, or if the model has no published size for the preset paper.
    """
    if name not in MODELS:
        raise UsageError(f"unknown model '{name}'{nearest(name, list(MODELS))}; known: {', '.join(MODELS)}")
    if preset not in PRESETS:
        raise UsageError(f"unknown preset '{preset}'{nearest(preset, list(PRESETS))}; known: {', '.join(PRESETS)}")
    name = _SHORT_NAMES.get(name, name)
    if name in IMAGE_CLASSIFIERS:
        from iotwin.workloads.models.image_classifiers import image_classifier

        return image_classifier(name, preset, classes or _CLASSES[preset])
    if name == "gnmt":
        from iotwin.workloads.models.gnmt import gnmt

        return gnmt(preset)
    if preset == "paper":
        raise UsageError(f"the model {name} has no published size; use the preset tiny")
    from iotwin.workloads.models import gan, sequences, unet

    return {
        "mlp": sequences.mlp, "mlp4": sequences.mlp4, "skip4": sequences.skip4, "tied": sequences.tied, "lstm": sequences.lstm,
        "treelstm": sequences.treelstm, "transformer": sequences.transformer, "unet": unet.unet, "gan": gan.gan,
    }[name]()  # fmt: skip
