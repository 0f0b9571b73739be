"""Saves the parts of a script's state that have changed since its loop began, and puts them back."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from iotwin.common.errors import IotwinError
from iotwin.common.tensor_file import crc32c
from iotwin.workloads.detrain import script_state
from iotwin.workloads.detrain.loaders import IteratorState, TrackedIterator
from iotwin.workloads.detrain.plain_values import decode, encode, is_plain, replace_content
from iotwin.workloads.detrain.script_state import Part, Walk

State = dict[str, Any]
_Assign = Callable[[str, str, Any], None]


class ScriptState:
    """Captures and restores the state of a script. The first capture tells what its loop began with."""

    def __init__(self, assign: _Assign) -> None:
        self._assign = assign
        self._begun: dict[str, Any] | None = None  # by path: what a value was when the loop began
        self._kept: set[str] = set()  # paths that were restored: the script, run from its start, does not make these values
        self.unsaved: dict[str, str] = {}  # paths whose values cannot be saved, with the reason

    def begin(self, frame: types.FrameType | None) -> None:
        """Remember the state that the script itself has made, the first time."""
        if self._begun is None:
            self._begun = {part.path: _mark(part) for part in self._parts(frame) if part.kind in _CHANGING}

    def _parts(self, frame: types.FrameType | None) -> Iterator[Part]:
        return Walk(script_state.frames_of(frame), self._assign).parts()

    def capture(self, frame: types.FrameType | None, gradients: bool) -> State:
        """Return the state: `objects`, `gradients` of modules if asked for, `generators`, `iterators`, `tensors` and `plain`."""
        state: State = {name: {} for name in ("objects", "gradients", "generators", "iterators", "tensors", "plain")}
        self.unsaved = {}
        for part in self._parts(frame):
            if part.kind == script_state.OBJECT:
                state["objects"][part.path] = self._object(part)
                if gradients and (found := _gradients(part.value)):
                    state["gradients"][part.path] = found
            elif part.kind == script_state.GENERATOR:
                state["generators"][part.path] = _generator_state(part.value)
            elif part.kind == script_state.ITERATOR:
                state["iterators"][part.path] = _encoded(part.value.state()._asdict())
                if not part.value.restorable:
                    self.unsaved[part.path] = "its data set only tells its samples one after another"
            elif part.kind == script_state.LOST:
                self.unsaved[part.path] = f"a {type(part.value).__name__} has no state that can be saved"
            elif self._changed(part):
                key = "plain" if part.kind == script_state.PLAIN else "tensors"
                state[key][part.path] = encode(part.value) if key == "plain" else _tensor(part.value)
        return state

    def generators(self, frame: types.FrameType | None) -> State:
        """Return the states of the script's own generators, by path."""
        own = (part for part in self._parts(frame) if part.kind == script_state.GENERATOR)
        return {part.path: _generator_state(part.value) for part in own}

    def set_generators(self, saved: State, frame: types.FrameType | None) -> None:
        """Set the script's own generators to states that `generators` returned."""
        parts = self.parts(frame)
        for path in saved.keys() & parts.keys():
            _set_generator(parts[path].value, saved[path])

    def plain(self, frame: types.FrameType | None) -> State:
        """Return the plain values that have changed, by path."""
        found = (part for part in self._parts(frame) if part.kind == script_state.PLAIN and self._changed(part))
        return {part.path: encode(part.value) for part in found}

    def _changed(self, part: Part) -> bool:
        begun = self._begun or {}
        return part.path in self._kept or part.path not in begun or not _same(begun[part.path], _mark(part))

    def _object(self, part: Part) -> State:
        value = part.value
        saved: State = {"state": _encoded(value.state_dict(), self.unsaved, part.path)}
        if isinstance(value, torch.nn.Module):
            saved["training"] = [module.training for module in value.modules()]
            hidden = {
                f"{prefix}.{name}": module._buffers[name]
                for prefix, module in value.named_modules()
                for name in module._non_persistent_buffers_set
                if module._buffers.get(name) is not None
            }
            if hidden:
                saved["hidden"] = hidden
        return saved

    def restore(self, state: State, frame: types.FrameType | None) -> None:
        """Put a captured state back. Raises IotwinError if the script has no such object any more."""
        parts = {part.path: part for part in self._parts(frame)}
        for key in ("objects", "generators"):
            if missing := [path for path in state[key] if path not in parts]:
                raise IotwinError(
                    f"the checkpoint holds {missing[0]}, which the script does not have; resume with its own script"
                )
        for path, saved in state["objects"].items():
            _load(parts[path], saved)
        for path, gradients in state["gradients"].items():
            _put_gradients(parts[path].value, gradients)
        for path, saved in state["iterators"].items():
            if path in parts and isinstance(parts[path].value, TrackedIterator):
                parts[path].value.go_to(IteratorState(**_decoded(saved)))
        self.restore_plain(state["plain"], parts)
        for path, saved in state["tensors"].items():
            if path in parts:
                _put_tensor(parts[path], saved)
            else:
                self._put_new(path, _made(saved))
        for path, saved in state["generators"].items():
            _set_generator(parts[path].value, saved)
        self._kept |= state["plain"].keys() | state["tensors"].keys()

    def restore_plain(self, saved: State, parts: dict[str, Part]) -> None:
        """Put plain values back, in the containers that hold them."""
        for path, value in saved.items():
            if path not in parts:
                self._put_new(path, decode(value))
            elif not replace_content(parts[path].value, decode(value)):
                parts[path].put(decode(value))

    def parts(self, frame: types.FrameType | None) -> dict[str, Part]:
        """Return the present parts by path."""
        return {part.path: part for part in self._parts(frame)}

    def _put_new(self, path: str, value: Any) -> None:
        """Put a variable that the script has not assigned yet."""
        function, dot, name = path.partition("().")
        if dot and name.isidentifier():
            self._assign(function, name, value)
        elif path.isidentifier():
            import __main__

            setattr(__main__, path, value)


_CHANGING = (script_state.PLAIN, script_state.TENSOR, script_state.ARRAY)


def _mark(part: Part) -> Any:
    """Return what tells whether a value has changed. A tensor is held, so that no other one gets its identity."""
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


def _encoded(value: Any, unsaved: dict[str, str] | None = None, path: str = "") -> Any:
    """Return a state of nested dicts, lists and tuples with its plain values encoded; what cannot be saved is left out."""
    if isinstance(value, torch.Tensor | np.ndarray):
        return value
    if is_plain(value):
        return encode(value)
    if isinstance(value, dict):
        items = ((key, each, f"{path}[{key!r}]") for key, each in value.items())
        kept = [
            [encode(key), _encoded(each, unsaved, below)] for key, each, below in items if _can_be_saved(each, unsaved, below)
        ]
        return {"$items": kept}
    return {"$list" if isinstance(value, list) else "$tuple": [_encoded(each, unsaved, f"{path}[]") for each in value]}


def _can_be_saved(value: Any, unsaved: dict[str, str] | None, path: str) -> bool:
    if isinstance(value, torch.Tensor | np.ndarray | dict | list | tuple) or is_plain(value):
        return True
    if unsaved is not None:
        unsaved[path] = f"a {type(value).__name__} cannot be saved"
    return False


def _decoded(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        [(mark, content)] = value.items()
        if mark == "$items":
            return {decode(key): _decoded(each) for key, each in content}
        if mark in ("$list", "$tuple"):
            found = [_decoded(each) for each in content]
            return found if mark == "$list" else tuple(found)
    return value if isinstance(value, torch.Tensor | np.ndarray) else decode(value)


def _load(part: Part, saved: State) -> None:
    try:
        part.value.load_state_dict(_decoded(saved["state"]))
    except (RuntimeError, ValueError, KeyError, TypeError) as error:
        raise IotwinError(f"the checkpoint's {part.path} does not fit the script's: {str(error).splitlines()[0]}") from None
    if isinstance(part.value, torch.nn.Module):
        for module, training in zip(part.value.modules(), saved["training"], strict=False):
            module.training = training
        modules = dict(part.value.named_modules())
        for path, tensor in saved.get("hidden", {}).items():
            prefix, _, name = path.rpartition(".")
            with torch.no_grad():
                modules[prefix]._buffers[name].copy_(tensor)  # type: ignore[union-attr]


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
    if type(held) is not type(data) and not isinstance(held, torch.nn.Parameter) or held.shape != data.shape:
        part.put(_made(saved))
    elif isinstance(held, torch.Tensor):
        with torch.no_grad():
            held.copy_(data)
        held.grad = saved["grad"]
    else:
        held[...] = data


def _generator_state(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return value.get_state()
    if isinstance(value, np.random.Generator):
        return _encoded(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return _encoded(value.get_state(legacy=False))
    return encode(value.getstate())


def _set_generator(value: Any, saved: Any) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(saved)
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = _decoded(saved)
    elif isinstance(value, np.random.RandomState):
        value.set_state(_decoded(saved))
    else:
        value.setstate(decode(saved))
