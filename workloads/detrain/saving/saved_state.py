"""Saves the parts of a script's state that have changed since its loop began, and puts them back."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import crc32c
from iotwin.workloads.detrain.loaders import IteratorState, TrackedIterator
from iotwin.workloads.detrain.saving import script_state
from iotwin.workloads.detrain.saving.nested_values import decode_nested, encode_nested
from iotwin.workloads.detrain.saving.plain_values import decode, encode, replace_content
from iotwin.workloads.detrain.saving.provider import NotBuilt, State
from iotwin.workloads.detrain.saving.providers import provider_of
from iotwin.workloads.detrain.saving.script_state import Part, Walk

_CHANGING = (script_state.PLAIN, script_state.TENSOR, script_state.ARRAY)
_Frame = types.FrameType | None


class ScriptState:
    """Captures and restores the state of a script. `assign` is called with (function, name, value) to put a variable."""

    def __init__(self, assign: Callable[[str, str, Any], None]) -> None:
        self._assign = assign
        self._begun: dict[str, Any] | None = None  # by path: what a value was when the loop began
        self._kept: set[str] = set()  # paths that were restored: the script, run from its start, does not make these values
        self.unsaved: dict[str, str] = {}  # paths whose values cannot be saved, with the reason

    def begin(self, frame: _Frame) -> None:
        """Remember what the script made before its loop, the first time."""
        if self._begun is None:
            self._begun = {part.path: _mark(part) for part in self._parts(frame) if part.kind in _CHANGING}

    def _parts(self, frame: _Frame) -> Iterator[Part]:
        return Walk(script_state.frames_of(frame), self._assign).parts()

    def parts(self, frame: _Frame) -> dict[str, Part]:
        """Return the present parts by path."""
        return {part.path: part for part in self._parts(frame)}

    def capture(self, frame: _Frame, gradients: bool) -> State:
        """Return the state by path: `objects`, `gradients` of modules if asked for, `iterators`, `tensors`, `plain` values."""
        state: State = {name: {} for name in ("objects", "gradients", "iterators", "tensors", "plain")}
        self.unsaved = {}
        for part in self._parts(frame):
            if part.kind == script_state.OBJECT:
                state["objects"][part.path] = self._saved(part)
                if gradients and (found := _gradients(part.value)):
                    state["gradients"][part.path] = found
            elif part.kind == script_state.ITERATOR:
                state["iterators"][part.path] = encode_nested(part.value.state()._asdict(), self.unsaved)
                if not part.value.restorable:
                    self.unsaved[part.path] = "its data set only gives its samples one after another"
            elif part.kind == script_state.LOST:
                self.unsaved[part.path] = f"a {type(part.value).__name__} has no state that can be saved"
            elif self._changed(part):
                key = "plain" if part.kind == script_state.PLAIN else "tensors"
                state[key][part.path] = encode(part.value) if key == "plain" else _tensor(part.value)
        return state

    def _saved(self, part: Part) -> Any:
        left_out: dict[str, str] = {}
        provider = provider_of(part.value)
        return provider.save(part.value, left_out) if provider else None

    def _changed(self, part: Part) -> bool:
        begun = self._begun or {}
        return part.path in self._kept or part.path not in begun or not _same(begun[part.path], _mark(part))

    def generators(self, frame: _Frame) -> State:
        """Return the states of the script's own generators, by path."""
        own = (part for part in self._parts(frame) if part.kind == script_state.OBJECT)
        return {part.path: self._saved(part) for part in own if _draws(part.value)}

    def set_generators(self, saved: State, frame: _Frame) -> None:
        """Set the script's own generators to states that `generators` returned."""
        parts = self.parts(frame)
        for path in saved.keys() & parts.keys():
            _load(parts[path], saved[path])

    def plain(self, frame: _Frame) -> State:
        """Return the plain values that have changed, by path."""
        found = (part for part in self._parts(frame) if part.kind == script_state.PLAIN and self._changed(part))
        return {part.path: encode(part.value) for part in found}

    def restore(self, state: State, frame: _Frame, without: frozenset[str] = frozenset()) -> None:
        """Put a captured state back, but for objects whose type's name is in `without`.

        Raises NotBuilt if the script has no such object (yet), and IotwinError if one does not fit.
        """
        parts = self.parts(frame)
        if missing := [path for path in state["objects"] if path not in parts]:
            raise NotBuilt(f"the script has no {missing[0]}")
        chosen = {path: saved for path, saved in state["objects"].items() if type(parts[path].value).__name__ not in without}
        for path in sorted(chosen, key=lambda path: _draws(parts[path].value)):  # loading others may draw
            _load(parts[path], chosen[path])
        for path, gradients in state["gradients"].items():
            _put_gradients(parts[path].value, gradients)
        for path, saved in state["iterators"].items():
            if path in parts and isinstance(parts[path].value, TrackedIterator):
                parts[path].value.go_to(IteratorState(**decode_nested(saved)))
        self.restore_plain(state["plain"], parts)
        for path, saved in state["tensors"].items():
            if path in parts:
                _put_tensor(parts[path], saved)
            else:
                self._put_new(path, _made(saved))
        self._kept |= state["plain"].keys() | state["tensors"].keys()

    def restore_plain(self, saved: State, parts: dict[str, Part]) -> None:
        """Put plain values back, in the containers that hold them."""
        for path, value in saved.items():
            if path not in parts:
                self._put_new(path, decode(value))
            elif not replace_content(parts[path].value, decode(value)):
                parts[path].put(decode(value))

    def _put_new(self, path: str, value: Any) -> None:
        """Put a variable that the script has not assigned yet."""
        function, call, name = path.partition("().")
        if call and name.isidentifier():
            self._assign(function, name, value)
        elif path.isidentifier():
            import __main__

            setattr(__main__, path, value)


def _draws(value: Any) -> bool:
    provider = provider_of(value)
    return provider is not None and provider.draws


def _load(part: Part, saved: Any) -> None:
    provider = provider_of(part.value)
    try:
        if provider is not None:
            provider.load(part.value, saved)
    except IotwinError as error:
        raise IotwinError(f"the checkpoint's {part.path} does not fit the script's: {error}") from None
    except NotBuilt as missing:
        raise NotBuilt(f"{part.path} {missing}") from None


def _mark(part: Part) -> Any:
    """Return a value's mark: if it is another one later, the value has changed.

    A tensor is held, so that no other one gets its identity.
    """
    value = part.value
    if part.kind == script_state.TENSOR:
        return value, None if value.is_inference() else value._version
    if part.kind == script_state.ARRAY:
        return value.dtype.str, value.shape, crc32c(np.ascontiguousarray(value).reshape(-1).view(np.uint8))
    return encode(value)


def _same(before: Any, now: Any) -> bool:
    if isinstance(now, tuple) and isinstance(now[0], torch.Tensor):
        return isinstance(before, tuple) and before[0] is now[0] and before[1] == now[1]
    return bool(before == now)


def _gradients(value: Any) -> dict[str, torch.Tensor]:
    if not isinstance(value, torch.nn.Module):
        return {}
    return {name: each.grad for name, each in value.named_parameters() if each.grad is not None}


def _put_gradients(module: torch.nn.Module, gradients: dict[str, torch.Tensor]) -> None:
    for name, parameter in module.named_parameters():
        parameter.grad = gradients[name].to(parameter.device).clone() if name in gradients else None


def _tensor(value: Any) -> State:
    if isinstance(value, np.ndarray):
        return {"data": value, "requires_grad": False, "grad": None}
    leaf = value.is_leaf and value.requires_grad
    return {"data": value.detach(), "requires_grad": leaf, "grad": value.grad if leaf else None}


def _made(saved: State) -> Any:
    data = saved["data"]
    return data.clone().requires_grad_(saved["requires_grad"]) if isinstance(data, torch.Tensor) else data.copy()


def _put_tensor(part: Part, saved: State) -> None:
    """Give a tensor or array its content in place, so that all who hold it see it; replace one of another shape."""
    held, data = part.value, saved["data"]
    if isinstance(held, torch.Tensor) != isinstance(data, torch.Tensor) or held.shape != data.shape or held.dtype != data.dtype:
        part.put(_made(saved))
    elif isinstance(held, torch.Tensor):
        with torch.no_grad():
            held.copy_(data)
        held.grad = saved["grad"]
    else:
        held[...] = data
