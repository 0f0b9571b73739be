"""Saves and restores the objects of a script that have a state: models, optimizers, random generators."""

import random
import sys
from collections.abc import Iterator, Sequence
from operator import length_hint
from typing import Any

import numpy as np

from iotwin.common.errors import IotwinError
from iotwin.workloads.detrain.saving.plain_values import decode, encode
from iotwin.workloads.detrain.saving.provider import Provider, State
from iotwin.workloads.detrain.saving.tensorflow_states import KerasObjects


class StateDicts:
    """Objects with `state_dict` and `load_state_dict`: modules, optimizers, schedulers, scalers, and the script's own."""

    draws = False

    def knows(self, value: Any) -> bool:
        return not isinstance(value, type) and callable(getattr(value, "state_dict", None)) and hasattr(value, "load_state_dict")

    def save(self, value: Any, unsaved: dict[str, str]) -> State:
        import torch

        saved: State = {"state": encode(value.state_dict(), unsaved)}
        if isinstance(value, torch.nn.Module):
            saved["training"] = [module.training for module in value.modules()]
            saved["trainable"] = [parameter.requires_grad for parameter in value.parameters()]
            saved["hidden"] = {
                f"{prefix}.{name}": encode(module._buffers[name], unsaved)
                for prefix, module in value.named_modules()
                for name in sorted(module._non_persistent_buffers_set)
                if module._buffers.get(name) is not None
            }
        return saved

    def load(self, value: Any, saved: State) -> None:
        import torch

        groups = value.param_groups if isinstance(value, torch.optim.Optimizer) else []
        held = [each for group in groups for each in group["params"]]
        if isinstance(value, torch.nn.Module):
            held = [*value.parameters(), *value.buffers()]
        try:
            value.load_state_dict(decode(saved["state"], held))
        except (RuntimeError, ValueError, KeyError, TypeError) as error:
            raise IotwinError(str(error).splitlines()[0]) from None
        if groups:  # the optimizer has new groups now, but the script may refer to its former groups
            for group, loaded in zip(groups, value.param_groups, strict=True):
                group.clear()
                group.update(loaded)
            value.param_groups = groups
        if isinstance(value, torch.nn.Module):
            for module, training in zip(value.modules(), saved["training"], strict=False):
                module.training = training
            for parameter, trainable in zip(value.parameters(), saved["trainable"], strict=False):
                parameter.requires_grad_(trainable)
            modules = dict(value.named_modules())
            for path, tensor in saved["hidden"].items():
                prefix, _, name = path.rpartition(".")
                with torch.no_grad():
                    modules[prefix]._buffers[name].copy_(decode(tensor, held))


class OwnTorchGenerators:
    """Generators of torch."""

    draws = True

    def knows(self, value: Any) -> bool:
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(value, torch.Generator)

    def save(self, value: Any, unsaved: dict[str, str]) -> Any:
        return value.get_state()

    def load(self, value: Any, saved: Any) -> None:
        value.set_state(saved)


class OwnNumpyGenerators:
    """Generators of numpy, of the new and the old kind."""

    draws = True

    def knows(self, value: Any) -> bool:
        return isinstance(value, np.random.Generator | np.random.RandomState)

    def save(self, value: Any, unsaved: dict[str, str]) -> Any:
        is_new = isinstance(value, np.random.Generator)
        return encode(value.bit_generator.state if is_new else value.get_state(legacy=False), unsaved)

    def load(self, value: Any, saved: Any) -> None:
        if isinstance(value, np.random.Generator):
            value.bit_generator.state = decode(saved)
        else:
            value.set_state(decode(saved))


class OwnPythonGenerators:
    """Generators of Python."""

    draws = True

    def knows(self, value: Any) -> bool:
        return isinstance(value, random.Random)

    def save(self, value: Any, unsaved: dict[str, str]) -> Any:
        return encode(value.getstate())

    def load(self, value: Any, saved: Any) -> None:
        value.setstate(decode(saved))


class BuiltinIterators:
    """Iterators over ranges, lists and other containers: Python knows how many values are left."""

    draws = False

    def knows(self, value: Any) -> bool:
        return isinstance(value, Iterator) and type(value).__module__ == "builtins" and hasattr(value, "__length_hint__")

    def save(self, value: Any, unsaved: dict[str, str]) -> int:
        return length_hint(value)

    def load(self, value: Any, saved: int) -> None:
        while length_hint(value) > saved:
            next(value)
        if length_hint(value) != saved:
            raise IotwinError(f"{saved} values are left in the checkpoint, {length_hint(value)} in this run")


PROVIDERS: Sequence[Provider] = (
    OwnTorchGenerators(), OwnNumpyGenerators(), OwnPythonGenerators(), StateDicts(), BuiltinIterators(),
    KerasObjects(),
)  # fmt: skip


def provider_of(value: Any) -> Provider | None:
    """Return the provider that knows an object, None if none does."""
    return next((each for each in PROVIDERS if each.knows(value)), None)


def loads_in_place(value: Any) -> bool:
    """Return whether the parts of an object, such as its parameters, remain the same objects when its state is restored.

    True for objects of torch's classes and their subclasses. False if the script's own code loads the object or a module in it.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(value, "load_state_dict"):
        return isinstance(value, np.random.Generator | np.random.RandomState | random.Random | Iterator) or (
            torch is not None and isinstance(value, torch.Generator)
        )
    if not isinstance(value, torch.nn.Module):
        return _is_of_torch(value, "load_state_dict")
    names = ("load_state_dict", "_load_from_state_dict", "set_extra_state")
    return all(_is_of_torch(module, name) for module in value.modules() for name in names)


def _is_of_torch(value: Any, method: str) -> bool:
    return str(getattr(type(value), method).__module__).startswith("torch.")


def is_model(value: Any) -> bool:
    """Return whether an object is a model, or a layer of one."""
    torch, keras = sys.modules.get("torch"), sys.modules.get("keras")
    return (torch is not None and isinstance(value, torch.nn.Module)) or (
        keras is not None and isinstance(value, keras.layers.Layer)
    )
