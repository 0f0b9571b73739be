"""Models of several kinds, in the project's own definitions: `build(name, preset)` gives the module, its inputs and its loss."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.errors import UsageError, nearest

if TYPE_CHECKING:
    import torch

    Inputs = Callable[[int], tuple[torch.Tensor, ...]]
    Loss = Callable[..., torch.Tensor]

# The samples of a batch when nothing else is asked for.
MODELS = {
    "mlp": 32, "resnet": 4, "densenet": 4, "unet": 2, "lstm": 8, "treelstm": 1, "transformer": 4, "vgg": 4, "gan": 8,
}  # fmt: skip
# Networks that classify images, as published and tiny.
NETWORKS = ("resnet18", "resnet50", "resnext101", "vgg16", "densenet121", "inception_v3")
PRESETS = ("paper", "tiny")


def build_network(name: str, preset: str, classes: int) -> "torch.nn.Module":
    """Return a network that tells `classes` classes of images; UsageError for an unknown name or preset."""
    if name not in NETWORKS:
        raise UsageError(f"unknown network '{name}'{nearest(name, list(NETWORKS))}; known: {', '.join(NETWORKS)}")
    if preset not in PRESETS:
        raise UsageError(f"unknown preset '{preset}'{nearest(preset, list(PRESETS))}; known: {', '.join(PRESETS)}")
    from workloads.models.networks import network

    return network(name, preset, classes)


def build(name: str, preset: str = "tiny") -> "tuple[torch.nn.Module, Inputs, Loss]":
    """Return (module, make_inputs(batch), loss(module, *inputs)); UsageError for an unknown name or preset."""
    if name not in MODELS:
        raise UsageError(f"unknown model '{name}'{nearest(name, list(MODELS))}; known: {', '.join(MODELS)}")
    if preset != "tiny":
        raise UsageError(f"unknown preset '{preset}'; known: tiny")
    from workloads.models import images, sequences

    makers: dict[str, Callable[[], Any]] = {
        "mlp": sequences.mlp, "lstm": sequences.lstm, "treelstm": sequences.treelstm, "transformer": sequences.transformer,
        "resnet": images.resnet, "densenet": images.densenet, "unet": images.unet, "vgg": images.vgg, "gan": images.gan,
    }  # fmt: skip
    return makers[name]()
