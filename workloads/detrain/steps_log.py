"""Writes one line of JSON for each training step: its samples, its losses, and digests of the state after it."""

import hashlib
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from iotwin.common.files import append_line
from iotwin.workloads.detrain.saving import script_state
from iotwin.workloads.detrain.saving.generators import generator_states
from iotwin.workloads.detrain.saving.providers import is_model, provider_of
from iotwin.workloads.detrain.saving.script_state import Walk, frames_of
from iotwin.workloads.state.gathering import encode
from iotwin.workloads.state.nested_state import digest_of
from iotwin.workloads.state.torch_state import TORCH, as_tensor


class StepsLog:
    """Writes the log. `indices`: indices of the batches that loaders yield, in this order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.indices: deque[list[Any]] = deque(maxlen=1)
        self._losses: list[str] = []
        self._step: dict[str, Any] = {}
        _on_backward(lambda value: self._losses.append(value))

    def begin(self, epoch: int, batch: int, item: Any) -> None:
        """Begin a step. `item`: the batch, None if the loop's body fetches it."""
        if item is None:
            self.indices.clear()
        self._step = {"epoch": epoch, "batch": batch, "indices": self._indices(), "inputs_sha256": inputs_sha256(item)}
        self._losses.clear()

    def inputs(self, item: Any) -> None:
        """Record the batch that the loop's body has fetched."""
        self._step |= {"indices": self._indices(), "inputs_sha256": inputs_sha256(item)}

    def losses(self, values: Mapping[str, Any]) -> None:
        """Record the metrics that a framework computed for the step; the `loss` comes last."""
        for name in sorted(values, key=lambda name: (name == "loss", name)):
            self._losses += [float(each).hex() for each in np.ravel(values[name])]

    def _indices(self) -> Any:
        return _plain_indices(self.indices[-1]) if self.indices else None

    def end(self, frame: types.FrameType | None) -> None:
        """End a step and write its line."""
        if self._step["indices"] is None:  # the loop's body did not get its batch by its data call
            self._step["indices"] = self._indices()
        parameters, optimizers = self._states(frame)
        rng = hashlib.sha256(encode(generator_states())).hexdigest()
        line = {**self._step, "loss": list(self._losses), "parameters_sha256": parameters}
        append_line(self._path, msgspec.json.encode({**line, "optimizer_sha256": optimizers, "rng_sha256": rng}).decode())

    def _states(self, frame: types.FrameType | None) -> tuple[str, str]:
        """Return the digests of (the states of all models; the states of all other objects except generators)."""
        models, others = hashlib.sha256(), hashlib.sha256()
        parts = (part for part in Walk(frames_of(frame), lambda *_: None).parts() if part.kind == script_state.OBJECT)
        for part in sorted(parts, key=lambda part: part.path):
            provider = provider_of(part.value)
            if provider is not None and not provider.draws:
                tensors, values = TORCH.flatten(provider.save(part.value, {}))
                digest = models if is_model(part.value) else others
                digest.update(f"{part.path} {digest_of(tensors)}".encode() + msgspec.json.encode(values))
        return models.hexdigest(), others.hexdigest()


def inputs_sha256(item: Any) -> str | None:
    """Return the SHA-256 of the tensors and arrays of a batch, in order; None if it has none."""
    found = [as_tensor(name, value) for name, value in _tensors(item, "")]
    return digest_of(found) if found else None


def _tensors(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(value, torch.Tensor):
        if value.layout == torch.strided:
            yield path, value.detach()
    elif isinstance(value, np.ndarray):
        if value.dtype.kind in "biufc":
            yield path, torch.from_numpy(np.ascontiguousarray(value))
    elif callable(getattr(value, "numpy", None)) and hasattr(value, "shape"):  # a tensor of TensorFlow
        yield path, torch.from_numpy(np.ascontiguousarray(value))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path, torch.tensor(value)
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from _tensors(each, f"{path}.{index}")


def _plain_indices(indices: Any) -> Any:
    if isinstance(indices, list | tuple):
        return [_plain_indices(each) for each in indices]
    return int(indices) if isinstance(indices, int | np.integer | torch.Tensor) else str(indices)


def _on_backward(call: Callable[[str], None]) -> None:
    """Call with the value of each tensor that `backward` is called on, as hexadecimal digits."""
    backward = torch.Tensor.backward

    def recorded(tensor: torch.Tensor, *arguments: Any, **options: Any) -> Any:
        if tensor.numel() == 1:
            call(float(tensor.detach()).hex())
        return backward(tensor, *arguments, **options)

    torch.Tensor.backward = recorded
