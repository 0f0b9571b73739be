"""Profiles a model: measures its layers over many minibatches, and describes them as PipeDream's graph.txt does."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import quantiles
from typing import Any

import torch
from torch import Tensor, fx

from iotwin.common.errors import IotwinError, UsageError
from iotwin.datagen.layouts import ImagenetLayout
from iotwin.workloads.common.images import Images
from iotwin.workloads.common.parts import Parts
from iotwin.workloads.models import IMAGE_CLASSIFIERS, IMAGE_SIDE, MODELS, build
from iotwin.workloads.pipedream.converter.layers import description, is_item, node_ids, trace_layers
from iotwin.workloads.pipedream.plan.layer_graph import LayerGraph, LayerNode
from iotwin.workloads.pipedream.profile.activations import ActivationFiles
from iotwin.workloads.pipedream.profile.timing import LayerTimer, LayerTimes

_SHAPES = (getattr, "size", "dim", "numel")  # calls that compute nothing


@dataclass(frozen=True)
class ProfileOptions:
    """What to profile. `data_dir` is a folder of images with train/CLASS/*.JPEG; None means random data.

    The first `warm_up` minibatches do not count. `threads` limits the CPU threads of a layer; None means all CPUs. With
    `forward_only`, backward passes and updates take no time, as in inference.
    """

    model: str
    preset: str = "tiny"
    batch_size: int | None = None
    device: str = "cpu"
    minibatches: int = 100
    warm_up: int = 10
    data_dir: Path | None = None
    threads: int | None = None
    seed: int = 1
    activations: Path | None = None
    forward_only: bool = False


@dataclass(frozen=True)
class ModelProfile:
    """The graph of a profile, and a JSON document with its sums, and the quartiles of each layer."""

    graph: LayerGraph
    document: dict[str, Any]


def profile(options: ProfileOptions) -> ModelProfile:
    """Return the profile of a model. Times are medians over the minibatches after the warm-up.

    Raises UsageError if the model cannot be traced or the device is missing, IotwinError if there are too few images.
    """
    device = _device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    batches = _Minibatches(options)
    torch.manual_seed(options.seed)
    built = build(options.model, options.preset, batches.classes or None)
    traced = trace_layers(built.module.to(device))
    timer = LayerTimer(traced, device)
    activations = ActivationFiles(options.activations, traced) if options.activations else None
    count = sum(node.op == "placeholder" for node in traced.graph.nodes)
    loads_s = []
    for rest in reversed(range(options.warm_up + options.minibatches)):
        begin_s = time.perf_counter()
        tensors = batches.load()
        loads_s.append(time.perf_counter() - begin_s)
        moved = [tensor.to(device) for tensor in tensors]

        def criterion(output: Tensor, moved: Sequence[Tensor] = moved) -> Tensor:
            return built.loss(lambda *_: output, *[None] * count, *moved[count:])

        timer.observe = activations.write if activations and not rest else None
        timer.run(moved[:count], None if options.forward_only else criterion)
    found = _described(options, traced, timer, loads_s)
    found.document["activations"] = activations.document() if activations else None
    return found


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no GPU; use --device cpu")
    return torch.device(name)


class _Minibatches:
    """Loads minibatches as a training does, in this process. `classes` is 0 if the model sets them."""

    def __init__(self, options: ProfileOptions) -> None:
        self._make = build(options.model, options.preset).make_inputs
        self._size = options.batch_size or MODELS[options.model]
        self._images: Images | None = None
        self._next = self.classes = 0
        if options.data_dir is None:
            return
        if options.model not in IMAGE_CLASSIFIERS:
            raise UsageError(f"the model {options.model} reads no images; leave out --data_dir")
        names, files = ImagenetLayout.discover(options.data_dir, "train")
        if len(files) < self._size:
            raise IotwinError(f"{options.data_dir} has {len(files)} training images, too few for a minibatch of {self._size}")
        self.classes = len(names)
        self._images = Images(files, IMAGE_SIDE[options.preset], options.seed, Parts(False))

    def load(self) -> list[Tensor]:
        """Return the next minibatch: inputs of the model, then what its loss requires."""
        if self._images is None:
            return list(self._make(self._size))
        own = [self._images[1, (self._next + index) % len(self._images)] for index in range(self._size)]
        self._next += self._size
        return [torch.stack([pixels for pixels, _ in own]), torch.tensor([label for _, label in own])]


def _described(options: ProfileOptions, traced: fx.GraphModule, timer: LayerTimer, loads_s: list[float]) -> ModelProfile:
    ids = node_ids(traced)
    index = {node: position for position, node in enumerate(ids)}
    inputs = [node for node in ids if node.op == "placeholder"]
    load = _quartiles_ms(loads_s[options.warm_up :])
    nodes, layers = [], []
    for node, name in ids.items():
        if node in inputs:
            number = str(inputs.index(node)) if len(inputs) > 1 else ""
            # The time of loading a minibatch belongs to the first input, as in PipeDream's profiles.
            nodes.append(LayerNode(name, f"Input{number}", 0.0 if inputs.index(node) else load[1]))
            continue
        times = timer.times[node]
        free = is_item(node) or node.target in _SHAPES
        forward, backward, update = (
            [0.0] * 3 if free or not each else _quartiles_ms(each[options.warm_up :])
            for each in (times.forward_s, times.backward_s, times.update_s)
        )
        layer = _layer_node(name, description(node, traced), forward[1], backward[1], times)
        nodes.append(replace(layer, update_ms=update[1]))
        quartiles_ms = {"forward_ms": forward, "backward_ms": backward, "update_ms": update}
        layers.append({"id": name, "description": layer.description, **quartiles_ms})
    edges = [(index[before], index[node]) for node in ids for before in node.all_input_nodes if before in index]
    graph = LayerGraph(tuple(nodes), tuple(edges), f"profile of {options.model}")
    costed = [node for node in nodes if not node.is_input]
    document = {
        "model": options.model, "preset": options.preset, "batch_size": options.batch_size or MODELS[options.model],
        "device": _device_name(options.device), "threads": torch.get_num_threads(), "minibatches": options.minibatches,
        "layers": len(costed), "forward_s": sum(node.forward_ms for node in costed) / 1000,
        "backward_s": sum(node.backward_ms for node in costed) / 1000,
        "update_s": sum(node.update_ms for node in costed) / 1000, "load_s": load[1] / 1000,
        "parameter_bytes": sum(node.parameter_bytes for node in costed),
        "activation_bytes": sum(node.activation_bytes for node in costed), "quartiles": layers,
    }  # fmt: skip
    return ModelProfile(graph, document)


def _layer_node(name: str, text: str, forward_ms: float, backward_ms: float, times: LayerTimes) -> LayerNode:
    """Return the node of a layer. Several outputs are written as a list of sizes, ``[1.0; 2.0]``."""
    sizes = times.output_bytes
    written = f"[{'; '.join(map(str, sizes))}]" if len(sizes) > 1 else str(sizes[0])
    line = (
        f"forward_compute_time={forward_ms:.3f}, backward_compute_time={backward_ms:.3f}, "
        f"activation_size={written}, parameter_size={times.parameter_bytes:.3f}"
    )
    return LayerNode(name, text, forward_ms, backward_ms, sum(sizes), times.parameter_bytes, None, line)


def _quartiles_ms(seconds: list[float]) -> list[float]:
    """Return the quartiles in milliseconds, with the digits of a graph.txt."""
    found = quantiles(seconds, n=4, method="inclusive") if len(seconds) > 1 else seconds * 3
    return [round(1000 * each, 3) for each in found]


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "cpu"
